"""What the dump plugin uses of SGLang's source: each hooked symbol, with the parameters and attributes relied on.

One row a symbol and range of versions. `check.py` holds a wheel against it; a row is added when the plugin uses more.
"""

from dataclasses import dataclass

VERSIONS = (
    "0.5.9",
    "0.5.10",
    "0.5.10.post1",
    "0.5.11",
    "0.5.12",
    "0.5.12.post1",
    "0.5.13",
    "0.5.13.post1",
    "0.5.14",
    "0.5.15",
    "0.5.15.post1",
    "0.5.16",
    "0.5.17",
    "0.5.18",
    "0.5.19",
    "0.5.20",
    "0.5.21",
    "0.5.22",
    "0.5.23",
)
"""All that are published, from the oldest that can be dumped with to the newest."""
IN_CI = ("0.5.9", "0.5.11", "0.5.17", "0.5.23")
"""The oldest, the oldest with a plugin loader, one in the middle, the newest."""


@dataclass(frozen=True)
class Symbol:
    """One row."""

    file: str
    """Under sglang/."""
    name: str = ""
    """A class, a function, or `Class.method`; empty for the file itself."""
    parameters: tuple[str, ...] = ()
    """The function's first ones, in this order."""
    members: tuple[str, ...] = ()
    """What the class (or file) defines: fields, methods, and attributes that are set on `self`."""
    uses: tuple[str, ...] = ()
    """Names that the file's code mentions, and strings that it holds."""
    since: str = VERSIONS[0]
    until: str = VERSIONS[-1]

    def holds_for(self, version: str) -> bool:
        return VERSIONS.index(self.since) <= VERSIONS.index(version) <= VERSIONS.index(self.until)


_SETTER = "set_eagle3_layers_to_capture"
_RANKS = ("tp_rank", "attn_tp_rank", "attn_dp_rank")

SYMBOLS = (
    # plugin.py: the hooks, and what is read of the runner
    Symbol("srt/model_executor/model_runner.py", "ModelRunner.load_model", parameters=("self",)),
    Symbol("srt/model_executor/model_runner.py", "ModelRunner.forward", parameters=("self", "forward_batch")),
    Symbol(
        "srt/model_executor/model_runner.py",
        "ModelRunner",
        members=("is_draft_worker", "server_args", "model_config", "model", "device"),
    ),
    Symbol("srt/configs/model_config.py", "ModelConfig", members=("hidden_size",)),
    Symbol(
        "srt/layers/logits_processor.py",
        "LogitsProcessor.forward",
        parameters=("self", "input_ids", "hidden_states", "lm_head", "logits_metadata", "aux_hidden_states"),
    ),
    # batch.py
    Symbol(
        "srt/model_executor/forward_batch_info.py",
        "ForwardBatch",
        members=("forward_mode", "input_ids", "extend_seq_lens_cpu", "extend_prefix_lens_cpu"),
    ),
    Symbol("srt/model_executor/forward_batch_info.py", "ForwardBatch", members=("rids",), since="0.5.10"),
    Symbol("srt/model_executor/forward_batch_info.py", "ForwardMode", members=("EXTEND", "MIXED", "SPLIT_PREFILL")),
    # plugin.py, where a ForwardBatch does not say whose it is
    Symbol(
        "srt/model_executor/forward_batch_info.py", "ForwardBatch.init_new", parameters=("cls", "batch"), until="0.5.9"
    ),
    Symbol("srt/managers/schedule_batch.py", "ModelWorkerBatch", members=("reqs",), until="0.5.9"),
    Symbol("srt/managers/schedule_batch.py", "Req", members=("rid",)),
    # capture.py
    Symbol("srt/models/llama.py", f"LlamaForCausalLM.{_SETTER}", parameters=("self", "layer_ids")),
    Symbol("srt/models/llama.py", "LlamaModel", members=("layers", "layers_to_capture")),
    Symbol("srt/models/qwen3.py", f"Qwen3ForCausalLM.{_SETTER}", parameters=("self", "layer_ids")),
    Symbol("srt/models/qwen2.py", "Qwen2Model", members=("layers", "layers_to_capture")),
    Symbol("srt/models/deepseek_v2.py", f"DeepseekV2ForCausalLM.{_SETTER}", parameters=("self", "layer_ids")),
    Symbol("srt/models/deepseek_v2.py", "DeepseekV2Model", members=("layers", "layers_to_capture")),
    Symbol("srt/models/kimi_k25.py", "KimiK25ForConditionalGeneration", members=("language_model",)),
    Symbol(
        "srt/models/kimi_k25.py",
        f"KimiK25ForConditionalGeneration.{_SETTER}",
        parameters=("self", "layer_ids"),
        since="0.5.10",
    ),
    *(Symbol(f"srt/models/{name}.py", uses=("logits_processor",)) for name in ("llama", "qwen3", "deepseek_v2")),
    # checks.py: which rank this is
    Symbol("srt/distributed/parallel_state.py", members=("get_tensor_model_parallel_rank",), until="0.5.13.post1"),
    Symbol(
        "srt/layers/dp_attention.py",
        members=("get_attention_tp_rank", "get_attention_dp_rank"),
        until="0.5.13.post1",
    ),
    Symbol("srt/runtime_context.py", members=("get_parallel",), since="0.5.14"),
    Symbol("srt/runtime_context.py", "ParallelContext", members=_RANKS, since="0.5.14", until="0.5.20"),
    Symbol("srt/arg_groups/fields/parallel.py", "Parallel", members=_RANKS, since="0.5.21"),
    # checks.py: arguments that came of the flags
    Symbol("srt/server_args.py", "ServerArgs.resolved_dict", parameters=("self",), since="0.5.19"),
    # How plugins are loaded
    Symbol("srt/plugins/__init__.py", members=("load_plugins",), uses=("sglang.srt.plugins",), since="0.5.11"),
    Symbol("srt/managers/scheduler.py", members=("run_scheduler_process",)),
    Symbol("srt/managers/scheduler.py", uses=("load_plugins",), since="0.5.11"),
    # evaluation/load.py: what a reply says of its drafts
    Symbol("srt/managers/tokenizer_manager.py", uses=("spec_verify_ct",)),
    Symbol("srt/managers/tokenizer_manager.py", uses=("spec_accept_histogram",), until="0.5.11"),
    Symbol("srt/managers/tokenizer_manager.py", uses=("spec_correct_drafts_histogram",), since="0.5.12"),
    # server/launch.py: asks for it once the server is ready
    Symbol("srt/entrypoints/http_server.py", uses=("/freeze_gc",)),
    # server/required.py: which rank is to compute a request
    Symbol("srt/managers/io_struct.py", "GenerateReqInput", members=("data_parallel_rank",), until="0.5.9"),
    Symbol("srt/managers/io_struct.py", "GenerateReqInput", members=("routed_dp_rank",), since="0.5.10"),
    Symbol("srt/managers/data_parallel_controller.py", uses=("data_parallel_rank",), until="0.5.9"),
    Symbol("srt/managers/data_parallel_controller.py", uses=("routed_dp_rank",), since="0.5.10"),
    # launch.py
    Symbol("launch_server.py", "run_server", parameters=("server_args",), until="0.5.10.post1"),
    Symbol("srt/server_args.py", "prepare_server_args", parameters=("argv",), until="0.5.10.post1"),
    Symbol(
        "srt/utils/common.py",
        "kill_process_tree",
        parameters=("parent_pid", "include_parent"),
        until="0.5.10.post1",
    ),
)


@dataclass(frozen=True)
class Argument:
    """A field of ServerArgs that the plugin reads, where that version has it."""

    name: str
    since: str = VERSIONS[0]
    until: str = VERSIONS[-1]

    def holds_for(self, version: str) -> bool:
        return VERSIONS.index(self.since) <= VERSIONS.index(version) <= VERSIONS.index(self.until)


ARGUMENTS = (
    Argument("pp_size"),
    Argument("attn_cp_size"),
    Argument("dp_size"),
    Argument("attn_dp_size", since="0.5.22"),
    Argument("dcp_size", since="0.5.15"),
    Argument("enable_prefill_cp", since="0.5.14"),
    Argument("enable_prefill_context_parallel", since="0.5.10", until="0.5.19"),
    Argument("enable_dsa_prefill_context_parallel", since="0.5.13", until="0.5.19"),
    Argument("enable_nsa_prefill_context_parallel", until="0.5.12.post1"),
    Argument("enable_layernorm_sp", since="0.5.19"),
    Argument("enable_two_batch_overlap"),
    Argument("speculative_algorithm"),
    Argument("disable_radix_cache"),
    Argument("disable_cuda_graph"),
    Argument("enable_piecewise_cuda_graph", until="0.5.9"),
    Argument("disable_piecewise_cuda_graph", since="0.5.10", until="0.5.13.post1"),
    Argument("cuda_graph_config", since="0.5.14"),
    Argument("enable_flashinfer_allreduce_fusion"),
    Argument("flashinfer_allreduce_fusion_backend", since="0.5.14"),
    Argument("enable_aiter_allreduce_fusion", since="0.5.10"),
    Argument("disable_aiter_allreduce_fusion_in_prefill", since="0.5.21"),
)
