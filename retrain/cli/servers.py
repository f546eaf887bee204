"""The commands about the project's servers: `up`, `down`."""

from retrain.cli.command import SERVING, Answer, Clone, app

# What a person opens first, of each service that has pages.
PAGES = {"prefect": ("/deployments", "/runs"), "mlflow": ("/#/experiments", "/#/models")}


@app.command(group=SERVING)
def up(*, project: Clone) -> Answer:
    """Start the Prefect server, a worker, the MLflow UI and Ray."""
    from retrain.servers import services

    already_running = services.running(project)
    running = services.up(project)

    def show() -> None:
        for service in running:
            state = "runs already" if service in already_running else "started"
            links = [f"{service.url or ''}{page}" for page in PAGES.get(service.name, ("",))]
            print(f"{service.name:<8} {state:<13} {'  '.join(links)}".rstrip())

    return Answer([{"name": service.name, "url": service.url} for service in running], show)


@app.command(group=SERVING)
def down(*, project: Clone) -> Answer:
    """Stop what `retrain up` started."""
    from retrain.servers import services

    stopped = services.down(project)
    text = f"Stopped: {', '.join(stopped)}" if stopped else "Nothing was running."
    return Answer(stopped, lambda: print(text))
