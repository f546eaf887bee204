"""The commands about the project's servers: `up`, `down`."""

from retrain.cli.command import SERVING, Answer, Clone, app
from retrain.messages import wrapped
from retrain.servers import reachable


@app.command(group=SERVING)
def up(*, project: Clone) -> Answer:
    """Start the Prefect server, a worker and the MLflow UI."""
    from retrain.servers import services

    already_running = services.running(project)
    running, deployments = services.up(project)

    def show() -> None:
        for name, url in running.items():
            state = "runs already" if name in already_running else "started"
            print(f"{name:<8} {state:<13} {url or ''}".rstrip())
        print(wrapped(f"Deployments: {', '.join(deployments)}"))
        if fault := reachable.proxy_fault():
            print(wrapped(fault))

    return Answer([{"name": name, "url": url} for name, url in running.items()], show)


@app.command(group=SERVING)
def down(*, project: Clone) -> Answer:
    """Stop what `retrain up` started."""
    from retrain.servers import services

    stopped = services.down(project)
    text = f"Stopped: {', '.join(stopped)}" if stopped else "Nothing was running."
    return Answer(stopped, lambda: print(text))
