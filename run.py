"""The entrypoint: composes the configuration (conf/), checks it, and runs the experiment.

python run.py experiment=quickstart              everything, on a laptop's CPU
python run.py experiment=kimi_k25 mode=plan      what would happen; starts nothing
python run.py --config-dir RUN snapshot=replay   repeat a run
"""

import gc
import os
import sys

gc.disable()  # what imports make stays; to look through it again and again is a fifth of the start

import hydra  # noqa: E402
from omegaconf import DictConfig  # noqa: E402

from eagle3 import config, pipeline  # noqa: E402

gc.freeze()
gc.enable()
# Hydra then raises what went wrong instead of printing its own page; pipeline.main says it in our words.
os.environ["HYDRA_FULL_ERROR"] = "1"
config.register()


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def job(cfg: DictConfig) -> None:
    pipeline.run_job(cfg)


if __name__ == "__main__":
    sys.exit(pipeline.main(job))
