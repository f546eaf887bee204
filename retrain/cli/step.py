"""The command that DVC calls for each stage of `dvc.yaml`: `step`."""

import time

from retrain.cli.command import TRAINING, Answer, Clone, ToJson, Workload, app
from retrain.errors import UsageError
from retrain.faults import did_you_mean
from retrain.params import load_workload


@app.command(group=TRAINING)
def step(step: str, workload: Workload, /, *, project: Clone, to_json: ToJson) -> Answer:
    """Run one step of the flow `train`, as DVC does.

    Args:
        step: A stage of dvc.yaml.
    """
    from flows.train import train
    from retrain.runs import console, one_step

    stages = {each.name: each for each in train.steps if each.has_stage}
    if step not in stages:
        raise UsageError(f"{step}: no such step.{did_you_mean(step, stages)}")
    config = load_workload(project.params, workload)
    train.check(config, project)
    log = project.logs / f"{time.strftime('%Y%m%d-%H%M%S')}-dvc-{workload}.log"
    with console.on_screen(log, to_stderr=to_json):
        record = one_step.run_one(train, stages[step], config, project)
    return Answer(record)
