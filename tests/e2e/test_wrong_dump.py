"""Every way of being wrong that we know of, on purpose, in a real server: the proof or the plugin finds it out.

A copy of the plugin, spoilt, is put in front of SGLang; the target is a tiny DeepSeek-V3. How the dump is wrong is
written into a file that the copy reads, so one server does for all.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.e2e.extraction import BOUNDARIES, Quiet, Setting, lengths, write_prompts
from tests.e2e.models import build, tiny_deepseek

from eagle3.data.assembly import Assembly
from eagle3.data.attempts import require_boundaries
from eagle3.data.layout import StateShape, state_names
from eagle3.data.ledger import LedgerTail
from eagle3.data.meter import Meter
from eagle3.data.placement import Prompts, place, write_placement
from eagle3.data.proof import Findings
from eagle3.data.proving import BASE_ID, Proving
from eagle3.data.session import Session
from eagle3.data.writer import blank_manifest
from eagle3.errors import Eagle3Error, ProofError, ServerError
from eagle3.server import flags
from eagle3.server.client import Client
from eagle3.server.flags import server_command
from eagle3.server.launch import Server
from eagle3.server.patches import patch_folder
from eagle3.target import load_lm_head

pytestmark = pytest.mark.e2e

SPOILT = '''

_NOW = {"how": "", "before": None}
_start, _take, _guard, _set = start, Dump.take, Dump.guard, set_boundaries


def set_boundaries(model, boundaries):
    """Tells the launcher of other boundaries than were asked for, and captures the right ones."""
    return [b + 1 for b in _set(model, boundaries)]


def check_arguments(arguments):
    """The radix cache is let pass."""


def start(runner, work):
    _start(runner, work)
    _NOW["inner"] = runner.model.model
    runner.model.model.norm.register_forward_pre_hook(lambda _, args: _NOW.update(before=args[0] + args[1]))
    from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry as registry

    right, wrong = registry.get_handler("torch_native"), registry.get_handler("a back-end without a handler")
    registry.register("torch_native", lambda *a: (wrong if _NOW["how"] == "garbage attention" else right)(*a))


def _guarded(self, action):
    """Each way of being wrong has the plugin afresh."""
    file = Path(os.environ[FOLDER]) / "how"
    how = file.read_text() if file.exists() else ""
    if how != _NOW["how"]:
        _NOW["how"], self.writers.error, self._told = how, None, False
        wanted = list(self.placement.boundaries)
        _NOW["inner"].layers_to_capture = [b + 1 for b in wanted] if how.startswith("the next layer") else wanted
        if how == "the next layer, unwatched":
            self.entering.stop()
    _guard(self, action)


def _taken(self, final, aux):
    how, together = _NOW["how"], self.pending is not None and len(self.pending.segments) > 1
    if how == "before the norm":
        final = _NOW["before"]
    if how == "rows of another request" and together:
        final = final.roll(-self.pending.segments[0].count, 0)
    if how == "a boundary of another request" and together:
        aux = split_states(aux, final, final.shape[-1], len(self.placement.boundaries))[:-1]
        aux[1] = aux[1].roll(-self.pending.segments[0].count, 0)
    _take(self, final, aux)


Dump.take, Dump.guard = _taken, _guarded
'''
RIGHT = "right"
WAYS = (
    RIGHT,
    "before the norm",
    "rows of another request",
    "a boundary of another request",
    "garbage attention",
    "the next layer",
    "the next layer, unwatched",
)


class Wrong:
    """A running server with the spoilt plugin; `attempt` has it proved in one of the ways."""

    def __init__(self, root: Path, setting: Setting) -> None:
        self.work = root / "out" / "work"
        self.work.mkdir(parents=True)
        shape = StateShape(tuple(state_names(BOUNDARIES)), setting.target.hidden_size)
        self.dataset = place(Prompts.load(setting.root / "prompts"), shape, 1.0, setting.target.context_length)
        head = load_lm_head(setting.target)
        self.proofs = {
            way: Proving(root / "out", self.dataset, head, way, f"work/proof-{n}.safetensors", BASE_ID + 100 * n)
            for n, way in enumerate(WAYS)
        }
        write_placement(self.work, [self.dataset, *(proof.placement for proof in self.proofs.values())], "ab")
        self.assembly = Assembly(root / "out", self.dataset, blank_manifest(shape, self.dataset, {}))
        self.assembly.make_room(0)
        self.tail = LedgerTail(self.work)
        self.server: Server

    @contextmanager
    def serve(self, setting: Setting, log: Path) -> Iterator[None]:
        command = server_command(setting.config, "extraction", setting.target.path, dump=self.work)
        command = replace(command, argv=tuple(word for word in command.argv if word != "--disable-radix-cache"))
        with Server.start(command, log=log, timeout_s=900.0, work=self.work) as self.server:
            yield

    def attempt(self, way: str, ask: Callable[[Session], Awaitable[Findings | None]]) -> Findings | None:
        async def run() -> Findings | None:
            async with Client(self.server.url) as client:
                await client.flush_cache()  # its entries are of the way before
                (self.work / "how").write_text(way)
                await client.prefill([[5, 6, 7]], ["somebody"])
                while self.server.dump_status()["error"]:
                    await asyncio.sleep(0.1)
                proof = self.proofs[way]
                proof.create()
                meter = Meter(Quiet())
                return await ask(Session(self.server, client, self.assembly, proof, self.tail, "ab", meter, 300.0))

        return asyncio.run(run())

    def prove(self, way: str) -> Findings:
        async def ask(session: Session) -> Findings:
            return await session.proving.start(session.dump_for_proof, session.continue_for_proof)

        found = self.attempt(way, ask)
        assert found is not None
        return found

    def error(self, way: str, kind: type[Eagle3Error] = ProofError) -> str:
        with pytest.raises(kind) as caught:
            self.prove(way)
        assert self.assembly.done_sequences == 0, "a proof left something in the dataset"
        return str(caught.value)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wrong]:
    root = tmp_path_factory.mktemp("wrong")
    copy = root / "hs_dump"
    shutil.copytree(patch_folder("hs_dump"), copy)
    with (copy / "eagle3_hs_dump" / "plugin.py").open("a") as file:
        file.write(SPOILT)
    config = tiny_deepseek()
    # As wide as the latent, or the wrong attention is not computed silently but ends the server.
    config.qk_nope_head_dim = config.v_head_dim = config.kv_lora_rank
    config.qk_head_dim = config.qk_nope_head_dim + config.qk_rope_head_dim
    build(config, root / "model")
    write_prompts(root / "prompts", lengths(12))
    setting = Setting(root)
    setting.config.server.flags.extraction["chunked_prefill_size"] = 2048  # each prompt whole
    made = Wrong(root, setting)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flags, "patch_folder", lambda name: copy if name == "hs_dump" else patch_folder(name))
        with made.serve(setting, root / "server.log"):
            yield made


def test_other_boundaries_than_asked_for_are_read_back(wrong: Wrong) -> None:
    with pytest.raises(ProofError, match=r"captures boundaries \[2, 4, 5\], and \[1, 3, 4\] were asked for"):
        require_boundaries(wrong.server, BOUNDARIES)


def test_what_is_right_passes(wrong: Wrong) -> None:
    """With the radix cache on: the proof asks for log-probabilities of whole prompts, which no cache answers."""
    found = wrong.prove(RIGHT)
    assert found.sequences == 8
    assert found.max_decode_error is not None
    assert found.max_decode_error < 0.1
    assert wrong.server.dump_status()["boundaries_compared"] >= 3


def test_the_next_layer_s_states_are_seen_at_the_layer(wrong: Wrong) -> None:
    """The model's list says what was asked for, and the model captures one layer later. Only the first passes are
    watched, so this test is among the first."""
    message = wrong.error("the next layer", ServerError)
    assert "boundary 1: what the model hands out is not what enters layer 1" in message


@pytest.mark.parametrize("way", ["before the norm", "rows of another request"])
def test_a_wrong_final_state_is_seen_in_the_log_probabilities(wrong: Wrong, way: str) -> None:
    assert "differs from the server's own log-probabilities" in wrong.error(way)


def test_a_boundary_of_another_request_is_seen_alone_against_together(wrong: Wrong) -> None:
    message = wrong.error("a boundary of another request")
    assert "boundary.3: " in message
    assert "of the rows change with what else the server computes" in message


def test_garbage_attention_is_seen_in_decoding(wrong: Wrong) -> None:
    """In nothing else: the states are the same alone and together, and the log-probabilities are those of the states.

    It is what SGLang computes for DeepSeek on a CPU without patches/cpu_kernels.
    """
    assert "Decoding and prefill do not compute the same" in wrong.error("garbage attention")


def test_rows_of_the_dataset_that_are_of_other_layers_are_seen_at_the_end(wrong: Wrong) -> None:
    """The dataset's rows, here all zeros, are not those that the server computes."""

    async def ask(session: Session) -> Findings:
        return await session.proving.end(session.dump_for_proof, set())

    with pytest.raises(ProofError, match=r"boundary\.1: 100% of the rows change"):
        wrong.attempt("the next layer, unwatched", ask)


def test_a_radix_cache_is_seen_at_the_first_cached_prefix(wrong: Wrong) -> None:
    """By the plugin, which refuses such a server when it is not spoilt: see test_refused.py. Final, so the last."""

    async def ask(session: Session) -> None:
        await session.client.prefill([session.assembly.placement.input_ids(5).tolist()], ["somebody"])
        await session.stream()

    with pytest.raises(ServerError, match=r"rows are missing or belong to another request\. Is the radix cache on\?"):
        wrong.attempt(RIGHT, ask)
