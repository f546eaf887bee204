"""The commands that make the data better: what is suspect, what to label next, corrected labels."""

from retrain.cli.command import IMPROVING, Answer, Clone, ToJson, Workload, app
from retrain.cli.flows import DEFAULTS, RunOptions, run_steps


@app.command(group=IMPROVING)
def suspects(
    workload: Workload,
    /,
    *,
    options: RunOptions = DEFAULTS,
    project: Clone,
    to_json: ToJson,
) -> Answer:
    """Find labels that are probably wrong, contradictions and outliers.

    Example: `retrain suspects vit`
    """
    from flows.suspects import suspects as flow

    return run_steps(flow, workload, options, project, to_json)
