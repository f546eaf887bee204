"""The app that answers for one package: MLflow's own. Each answer names its version in a header.

    python -m retrain.servers.scoring PACKAGE

loads a package and asks it about an image, as a check. A package brings its own `models`: nothing
here imports those of this clone.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

from uvicorn.config import STARTUP_FAILURE
from uvicorn.protocols.http.auto import AutoHTTPProtocol

SERVED = "RETRAIN_SERVED"  # in the environment: the file with the version, its package and server
HEADER = "X-Retrain-Version"
STOP_SECONDS = 5.0
IDLE_SECONDS = 1.0
IMAGE = (  # a grey square, as PNG
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAEElEQVR4nGNsYIAAJgaKGAAmCACQXTClHgAAAABJRU5ErkJg"
    "gg=="
)

Message = MutableMapping[str, Any]
App = Callable[[Message, Any, Any], Awaitable[None]]


def make_app() -> App:
    """Loads the package that the server's file names, and gives the app that answers with it."""
    served = json.loads(Path(os.environ[SERVED]).read_text(encoding="utf-8"))
    Thread(target=_end_with, args=(served["pid"],), daemon=True).start()
    try:
        import mlflow.pyfunc
        from mlflow.pyfunc import scoring_server

        app = scoring_server.init(mlflow.pyfunc.load_model(served["package"]))
    except Exception:
        traceback.print_exc()
        sys.exit(STARTUP_FAILURE)  # else uvicorn would try it again and again
    header = (HEADER.lower().encode(), str(served["version"]).encode())

    async def answer(scope: Message, receive: Any, send: Any) -> None:
        async def send_with_version(message: Message) -> None:
            if message["type"] == "http.response.start":
                closes = [(b"connection", b"close")] if Connection.is_last else []
                message["headers"] = [*message["headers"], header, *closes]
            await send(message)

        await app(scope, receive, send_with_version)

    return answer


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # one of two classes
    """A connection with a client, on which a request may be on its way when the worker ends.

    uvicorn would close one that seems idle at once, also one that was just made.

    Attributes:
        is_last: Whether the worker ends, so that each answer is the last one on its connection.
    """

    is_last = False

    def shutdown(self) -> None:
        """Ends with the answer that is under way, or else a little later."""
        Connection.is_last = True
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(IDLE_SECONDS, super().shutdown)
        else:
            super().shutdown()


def main() -> None:
    """Checks the package that the argument names."""
    Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    import mlflow.pyfunc
    import pandas as pd

    model = mlflow.pyfunc.load_model(sys.argv[1])
    [answer] = model.predict(pd.DataFrame({"image": [IMAGE]})).to_dict("records")
    assert answer["label"] in answer["probabilities"], answer


def _end_with(server: int) -> None:
    """Ends this process when the one that has started it is gone, also when that was killed."""
    while os.getppid() == server:
        sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
    sleep(STOP_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
