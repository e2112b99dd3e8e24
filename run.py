"""The entrypoint: composes the configuration (conf/), checks it, and runs the experiment.

python run.py experiment=quickstart              everything, on a laptop's CPU
python run.py experiment=kimi_k25 mode=plan      what would happen; starts nothing
python run.py --config-dir RUN snapshot=replay   repeat a run
"""

import gc
import os
import sys

gc.disable()  # what imports make stays; to look through it again and again is a fifth of the start

try:
    import hydra
    from omegaconf import DictConfig

    from eagle3 import config, pipeline
except ModuleNotFoundError as error:  # another Python than the project's, or the folder was moved after its install
    root = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - a start without pathlib is a faster one
    told = f"error: {sys.executable} has no module {error.name}"
    sys.exit(f"{told}: run `make install` in {root} (again, if it was moved), and use {root}/.venv/bin/python")

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
