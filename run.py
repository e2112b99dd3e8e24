"""The entrypoint: composes the configuration (conf/), checks it, and runs the experiment.

python run.py experiment=quickstart              everything, on a laptop's CPU
python run.py experiment=kimi_k25 mode=plan      what would happen; starts nothing
python run.py --config-dir RUN snapshot=replay   repeat a run
"""

import os
import sys

import hydra
from omegaconf import DictConfig

from eagle3 import config, pipeline

# Hydra then raises what went wrong instead of printing its own page; pipeline.main says it in our words.
os.environ["HYDRA_FULL_ERROR"] = "1"
config.register()


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def job(cfg: DictConfig) -> None:
    pipeline.run_job(cfg)


if __name__ == "__main__":
    sys.exit(pipeline.main(job))
