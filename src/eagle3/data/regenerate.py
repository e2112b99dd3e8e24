"""Every answer of a dataset made anew by the target itself, greedy: what a drafter is to predict.

The target is served by SGLang; a conversation goes turn by turn, each prompt holding the answers made so far (the
server's prefix cache keeps their states), and many conversations go at a time.
"""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from eagle3.config.schema import Config
from eagle3.data.answers import Answer, Journal
from eagle3.data.own_prompts import OwnPrompts
from eagle3.data.prompts import Conversation, Message, Tally
from eagle3.data.tokenize import ConversationTokenizer
from eagle3.data.turns import UnmaskableError
from eagle3.errors import DataError, ServerError
from eagle3.files.whole import whole_file
from eagle3.metrics import Reporter
from eagle3.server.client import Client
from eagle3.server.flags import RESERVED_TOKENS, server_command
from eagle3.server.launch import Server
from eagle3.server.waves import Waves
from eagle3.target.info import TargetInfo

OUTPUT, JOURNAL, OWN = "conversations.jsonl", "answers.jsonl", "own_prompts.jsonl"
WAVE = 8
"""Waves that the requests in flight make up."""
FOREVER_S = 86400.0
TICK_S = 0.25
GRACE_S = 5.0
"""From a failed request to the news that the server died."""


def regenerate(
    cfg: Config,
    target: TargetInfo,
    tokenizer: ConversationTokenizer,
    conversations: list[Conversation],
    tally: Tally,
    out: Path,
    reporter: Reporter,
    logs: Path,
) -> list[Conversation]:
    """The conversations, and `prepare.own_prompts` more, with the target's own answers.

    They are also written to `out`/conversations.jsonl, a dataset like any.
    Where a run of assistant messages was, there is one answer, and one after a last message of the user. Messages of
    the assistant before the first of the user are left out. Interrupted, the same call goes on where it stopped.

    Raises:
        ConfigError: own prompts of a template that can't give them.
        DataError: nothing to answer, too few own prompts, or the disk is full.
        ServerError: the server did not start, died or stalled; the answers so far are kept.
    """
    out.mkdir(parents=True, exist_ok=True)
    own = OwnPrompts(out / OWN, cfg.prepare.own_prompts, tokenizer)
    with ExitStack() as stack:
        serving = _Serving(cfg, target, stack, reporter, logs)
        if own.lacking > 0:
            serving.run(lambda client: own.write(client, serving.waves, reporter), lambda: own.tokens)
        conversations = conversations + own.conversations(tally)
        plans = {c.index: asked for c in conversations if (asked := turns_to_answer(c.messages))}
        for conversation in conversations:
            if conversation.index not in plans:
                tally.skip("nothing to answer", conversation.where, "no message of the user")
        todo = [c for c in conversations if c.index in plans]
        if not todo:
            raise DataError(f"{cfg.dataset.path}: nothing to answer in {len(conversations):,} conversations.")
        journal = stack.enter_context(Journal(out / JOURNAL, todo))
        work = _Work(cfg, target, tokenizer, plans, journal, reporter)
        missing = [c for c in todo if work.lacks(c)]
        if len(missing) < len(todo):
            reporter.note(f"{len(todo) - len(missing):,} of {len(todo):,} conversations are answered already")
        if missing:
            serving.answer(work, missing)
    answered = []
    for conversation in todo:
        if (refusal := work.refused.get(conversation.index)) is not None:
            tally.skip("can't be asked", conversation.where, refusal)
        elif answers := journal.answers[conversation.index]:
            answered.append(replace(conversation, messages=_filled(plans[conversation.index], answers)))
    _write(out / OUTPUT, answered)
    _report(journal, answered, work, reporter)
    if own.prompts:
        reporter.log({"prepare/own_prompts": len(own.prompts)})
    return answered


def turns_to_answer(messages: list[Message]) -> list[list[Message]]:
    """The messages before each answer that is to be made: those since the answer before it.

    Runs of assistant messages are one answer, empty ones too; there is one after a last message that is not the
    assistant's. Empty when the user says nothing.
    """
    turns: list[list[Message]] = []
    since: list[Message] = []
    heard = False
    for message in messages:
        if message["role"] != "assistant":
            since.append(message)
            heard = heard or message["role"] == "user"
        elif since and heard:
            turns.append(since)
            since = []
    return [*turns, since] if since and heard else turns


def _filled(asked: list[list[Message]], answers: list[Answer]) -> list[Message]:
    """As many turns as there are answers to."""
    messages: list[Message] = []
    for before, answer in zip(asked, answers, strict=False):
        messages += [*before, {"role": "assistant", "content": answer.text}]
    return messages


class _Work:
    """What is to be asked, what has been answered, and how it goes."""

    def __init__(
        self,
        cfg: Config,
        target: TargetInfo,
        tokenizer: ConversationTokenizer,
        plans: dict[int, list[list[Message]]],
        journal: Journal,
        reporter: Reporter,
    ) -> None:
        self.tokenizer, self.plans, self.journal, self.reporter = tokenizer, plans, journal, reporter
        self.max_new_tokens = cfg.prepare.max_new_tokens
        # A longer prompt would be cut by what follows, and the server needs room for at least one token.
        self.longest = min(cfg.dataset.max_length, target.context_length - RESERVED_TOKENS)
        self.context_length = target.context_length
        self.refused: dict[int, str] = {}
        self.finished = 0
        self.tokens = 0
        self.began = time.monotonic()
        self.seconds = 0.0
        """From the server's first prompt to its last answer."""

    def lacks(self, conversation: Conversation) -> bool:
        return len(self.journal.answers[conversation.index]) < len(self.plans[conversation.index])

    async def converse(self, client: Client, waves: Waves, conversation: Conversation) -> None:
        """All missing turns of one conversation. It ends early where it has become as long as sequences may be."""
        index = conversation.index
        asked = self.plans[index]
        while (turn := len(self.journal.answers[index])) < len(asked):
            messages = [*_filled(asked, self.journal.answers[index]), *asked[turn]]
            try:
                prompt = self.tokenizer.prompt_ids(messages)
            except UnmaskableError as error:
                self.refused[index] = str(error)
                return
            if len(prompt) >= self.longest:
                if turn == 0:
                    self.refused[index] = f"its prompt has {len(prompt):,} tokens; the most is {self.longest - 1:,}"
                return
            room = min(self.max_new_tokens, self.context_length - len(prompt) - RESERVED_TOKENS)
            await waves.enter()
            completion = await client.complete(prompt, max(room, 1), self.tokenizer.end_ids)
            if completion.finish_reason not in ("stop", "length"):
                raise ServerError(f"the server ended an answer with {completion.finish_reason!r}: {completion.meta}")
            ids = completion.output_ids
            self.journal.add(index, Answer(self.tokenizer.answer(ids), len(ids), completion.finish_reason))
            self.tokens += len(ids)

    def progress(self, total: int) -> None:
        rate = self.tokens / max(time.monotonic() - self.began, 1e-9)
        fields = {"generated_tokens": self.tokens, "tokens_per_s": rate}
        self.reporter.progress(self.finished, total, unit="conversations", **fields)


class _Serving:
    """The target's server, started when it is needed first, ended with `stack`."""

    def __init__(self, cfg: Config, target: TargetInfo, stack: ExitStack, reporter: Reporter, logs: Path) -> None:
        self.cfg, self.target, self.stack, self.reporter, self.logs = cfg, target, stack, reporter, logs
        self.waves = Waves(max(cfg.server.concurrency // WAVE, 1))
        self._server: Server | None = None

    @property
    def server(self) -> Server:
        if self._server is None:
            command = server_command(self.cfg, "serving", self.target.path, extra={"skip_tokenizer_init": True})
            log, began = self.logs / "regenerate-server.log", time.monotonic()
            self.reporter.note(f"starting SGLang {command.sglang_version} to answer; log: {log}")
            started = Server.start(command, log=log, timeout_s=self.cfg.server.startup_timeout_s)
            self._server = self.stack.enter_context(started)
            self.reporter.note(f"server ready in {time.monotonic() - began:.0f} s")
        return self._server

    def answer(self, work: "_Work", missing: list[Conversation]) -> None:
        _ = self.server  # its start is not counted
        work.began = time.monotonic()
        self.run(lambda client: _ask_all(client, self.waves, work, missing), lambda: work.tokens)
        work.seconds = time.monotonic() - work.began

    def run(self, ask: Callable[[Client], Coroutine[None, None, None]], count: Callable[[], int]) -> None:
        """`count` grows while `ask` gets on."""
        asyncio.run(_watched(self.cfg, self.server, ask, count))


async def _watched(
    cfg: Config, server: Server, ask: Callable[[Client], Coroutine[None, None, None]], count: Callable[[], int]
) -> None:
    """Asks everything, and looks all the while whether the server is alive and moving."""
    # A reply may take as long as the server moves: many long answers share it.
    async with Client(server.url, cfg.server.concurrency, timeout_s=FOREVER_S) as client:
        asking = asyncio.ensure_future(ask(client))
        seen: tuple[int, int] = (-1, -1)
        moved = time.monotonic()
        try:
            while not asking.done():
                await asyncio.wait([asking], timeout=TICK_S)
                server.check()
                # The server's log tells of every few steps of decoding, long before an answer is complete.
                now = (count(), server.tree.log.stat().st_size)
                if now != seen:
                    seen, moved = now, time.monotonic()
                elif time.monotonic() - moved > cfg.server.stall_timeout_s:
                    raise ServerError(
                        f"the server has made no progress for {cfg.server.stall_timeout_s:.0f} s "
                        f"(server.stall_timeout_s). Log: {server.tree.log}; its last line: {server.tree.tail(1)!r}"
                    )
            await _result(asking, server)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


async def _result(asking: asyncio.Future[None], server: Server) -> None:
    try:
        await asking
    except ServerError:
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline:  # most often it has died, which takes a moment to be seen
            server.check()
            await asyncio.sleep(TICK_S)
        raise


async def _ask_all(client: Client, waves: Waves, work: "_Work", missing: list[Conversation]) -> None:
    jobs = ((c.index, lambda c=c: work.converse(client, waves, c)) for c in missing)
    async for _ in client.run(jobs):
        work.finished += 1
        work.progress(len(missing))


def _write(path: Path, conversations: list[Conversation]) -> None:
    with whole_file(path) as partial, partial.open("w", encoding="utf-8") as file:
        for c in conversations:
            row = {"id": c.row_id if c.row_id is not None else c.index, "messages": c.messages}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _report(journal: Journal, answered: list[Conversation], work: _Work, reporter: Reporter) -> None:
    answers = [answer for c in answered for answer in journal.answers[c.index]]
    cut = sum(answer.finish == "length" for answer in answers)
    tokens = sum(answer.tokens for answer in answers)
    figures: dict[str, float] = {
        "prepare/answers": len(answers),
        "prepare/answers_cut": cut,
        "prepare/generated_tokens": tokens,
    }
    if work.seconds:
        figures["prepare/generated_tokens_per_s"] = work.tokens / work.seconds
        reporter.note(
            f"{work.tokens:,} tokens generated in {work.seconds:.0f} s, {work.tokens / work.seconds:,.0f} a second"
        )
    reporter.log(figures)
    reporter.note(
        f"{len(answers):,} answers of {tokens / max(len(answers), 1):.0f} tokens on average; "
        f"{cut:,} of them cut at prepare.max_new_tokens; written to {OUTPUT}"
    )
