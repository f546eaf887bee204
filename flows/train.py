"""The flow `train`: pull > validate > preprocess > train > evaluate > gate > promote.

For a head on embeddings, `embed` comes before `train`.

retrain train vit
prefect deployment run train/vit --watch
"""

from flows.reports.training import TrainingReport
from retrain.errors import ChampionChangedError
from retrain.flow import MODEL_IMPORTS, steps_flow
from retrain.registry import versions
from retrain.runs import console
from retrain.runs.run import current_run
from retrain.step import Input, plan
from retrain.store import Artifact
from tasks.data.champion import champion_ties
from tasks.embed.step import embed
from tasks.evaluate.champion import (
    compare_classes,
    evaluate_champion,
    evaluate_reference,
    learnt_test_images,
    score_ahead,
    score_opponents,
)
from tasks.evaluate.step import evaluate
from tasks.gate.comparison import (
    compare_champion,
    compare_reference,
    compare_with,
    too_few_images,
)
from tasks.gate.step import changed_rules, gate
from tasks.preprocess.step import preprocess
from tasks.promote.step import promote
from tasks.pull.step import data_version, pull
from tasks.train.initial_weights import find_initial_weights
from tasks.train.step import train as train_network
from tasks.validate.step import validate

# In the order in which they are imported while a server starts.
IMPORTS = (
    *MODEL_IMPORTS,
    "torch",
    "great_expectations",
    "ray.train.torch",
    "transformers.modeling_utils",
)


@steps_flow(
    steps=(
        pull,
        validate,
        preprocess,
        embed,
        train_network,
        evaluate_champion,
        evaluate_reference,
        evaluate,
        compare_champion,
        compare_reference,
        gate,
        promote,
    ),
    report=TrainingReport(),
    version=data_version,
    imports=IMPORTS,
)
def train(version: Input) -> None:
    """Trains a workload's model and promotes it if the gate passes it.

    Raises:
        ValueError: The user has to correct something, such as data that fails its checks. A model
            that the gate rejects is not an error.
    """
    run = current_run()
    if (changed := changed_rules(run.workload)) and run.promote is not False:
        run.warn(
            "A model that passes is promoted, by rules of the gate that are not those of "
            f"params.yaml: {changed}."
        )
    data = pull(version)
    checked = validate(data, champion_ties())
    compare_classes(checked)  # before hours of training, like the next one
    images = prepare(data, checked)
    start = find_initial_weights(run.workload, run.project, images, data)
    score_before_training(data, checked, images, start)
    model = train_network(images, data, start)
    scores = evaluate(model, images, checked)
    decide(data, checked, model, scores)


def prepare(data: Artifact, checked: Artifact) -> Artifact:
    """Makes what the training takes: prepared images, or embeddings of them."""
    images: Artifact = preprocess(data, checked)
    if embed.needed(current_run().workload):
        images = embed(images)
    return images


def score_before_training(
    data: Artifact, checked: Artifact, images: Artifact, start: Input
) -> None:
    """Scores the champion if a training follows, so that one that fails is found before it.

    If the test split is too small for a comparison with it, or has images that it has learnt, that
    is told first.
    """
    run = current_run()
    training = plan(train_network, run.workload, [images, data, start])
    if reason := run.reason_to_run(training):
        run.must_run(training.step, reason)
        champion = versions.champion(run.project, run.workload.name)
        sentences = (
            too_few_images(run.workload.gate, checked) if champion else None,
            learnt_test_images(checked),
        )
        run.warn(*filter(None, sentences))
        score_ahead(data, checked, training.key)


def decide(data: Artifact, checked: Artifact, model: Artifact, scores: Artifact) -> None:
    """Compares a model with the champion and carries the decision out.

    When another run has promoted its model meanwhile, the comparison is made again, with that one.

    Raises:
        ValueError: The user has to correct something, as for `train`.
    """
    workload = current_run().workload
    while True:
        champion, reference = compare_with(scores, *score_opponents(data, checked, scores))
        decision = gate(workload.gate, scores, champion, reference)
        try:
            promote(data, checked, model, scores, decision, changed_rules(workload))
            return
        except ChampionChangedError:
            console.say("Another run has changed the champion; the model is compared again.")
