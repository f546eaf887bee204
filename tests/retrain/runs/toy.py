"""Two toy steps, as a flow runs them, and a task that asks each time."""

from retrain.step import DataVersion, Step, Task
from retrain.workload import Data, Model, Workload

DATA = DataVersion("abc", tracked=True)
WORKLOAD = Workload(name="toy", data=Data(path="x"), model=Model(family="vit"))


def first(definition, data, workspace):
    (workspace.folder / "out.txt").write_text(str(definition.epochs // 10))
    return {}


def second(above, workspace):
    (workspace.folder / "out.txt").write_text((above.folder / "out.txt").read_text() * 2)
    return {}


def asks(above):
    return {"asked": True}


FIRST = Step("first", first, reads=("train.epochs",), inputs=("data",))
SECOND = Step("second", second, reads=(), inputs=("first",))
ASKS = Task("asks", asks)
