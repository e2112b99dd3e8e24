"""How ranks share the work: each has the whole drafter (DDP), or its part of weights and optimiser state (FSDP2)."""

import lightning.pytorch as pl
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

DDP, SHARDED = "ddp", "sharded"


def strategy_of(kind: str, world: int) -> str | DDPStrategy | ModelParallelStrategy:
    """For `trainer.strategy` and so many processes."""
    if world == 1:
        return "auto"
    if kind == SHARDED:
        # Checkpoints are one file with the whole drafter, put together on rank 0: what resumes and exports is the same.
        return ModelParallelStrategy(
            data_parallel_size=world, tensor_parallel_size=1, save_distributed_checkpoint=False
        )
    # Every parameter has a gradient in every backward, once: nothing to search for, and nothing for a static graph
    # to help with. The only buffers are constants.
    return DDPStrategy(gradient_as_bucket_view=True, broadcast_buffers=False)


def share_out(module: pl.LightningModule) -> None:
    """Under the sharded strategy, leaves each rank its part of every parameter: for `configure_model`.

    All training-time-test steps go through the same layers: the drafter is gathered whole for a micro-batch.
    So weights stay fp32 in what is gathered and reduced, as with DDP, and what is saved is the optimiser's memory.
    """
    mesh = module.device_mesh
    if mesh is None or not isinstance(module.trainer.strategy, ModelParallelStrategy):
        return
    fully_shard(module, mesh=mesh["data_parallel"], reshard_after_forward=False)
    # These are called, and no forward.
    for name in ("training_step", "validation_step", "first_choices"):
        register_fsdp_forward_method(module, name)
