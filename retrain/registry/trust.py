"""Decides whether a run may trust the ledger of a model, add to it and carry out its entries.

The chain of the entries has to be whole. The head, the number and the digest of the last entry, is
a file of the project, `ledger/vit.json`, which is meant for git: a ledger that lacks that entry was
cut off or replaced. And where the file `allowed_signers` exists, in the format of ssh-keygen (a
name, the key's type, the key), entries have to be signed with SSH keys as git does it
(`ssh-keygen -Y`). The environment variable RETRAIN_SIGNING_KEY names a private key, or a public one
whose private one an agent holds.
"""

import json
import os
import subprocess
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from retrain import atomic
from retrain.project import LEDGERS, Project
from retrain.registry import ledger, snapshot
from retrain.registry.ledger import LONGEST_REASON, Decision, Entry, Ledger, compact

KEY = "RETRAIN_SIGNING_KEY"
SIGNERS = "allowed_signers"
NAMESPACE = "retrain-ledger"  # a signature for another purpose, such as a commit's, does not count
BEGIN, END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
WIDTH = 70  # of the lines between them
LENGTH = 6000  # characters; the longest parameter that MLflow takes


@dataclass(frozen=True)
class Head:
    """The last entry of a ledger when this file of the project was written.

    Attributes:
        ledger: The id of the ledger's MLflow run.
        number: The number of the entry.
        digest: SHA-256 (hex) of the entry.
    """

    ledger: str
    number: int
    digest: str


@dataclass(frozen=True)
class Standing:
    """A ledger, and whether it can be trusted.

    Attributes:
        ledger: The ledger, as it was read.
        aliases: The number of a version, by alias, at the same moment.
        faults: What was done to the ledger: its chain is broken, or its head is another one.
        unsigned: The first entry at its end that no allowed signer stands for; None if there is
            none, or if no signatures are demanded.
    """

    ledger: Ledger
    aliases: dict[str, int]
    faults: tuple[str, ...]
    unsigned: Entry | None

    @property
    def distrust(self) -> str | None:
        """Why nothing may be entered after what the ledger has; None if it may."""
        name = self.ledger.name
        if self.faults:
            return (
                f"The ledger of {name}: {self.faults[0]}. Nothing is decided until that is mended."
            )
        return f"The ledger of {name}: {self.forged}" if self.unsigned else None

    @property
    def forged(self) -> str:
        """The message about the entry that is not signed, with what a person can do."""
        entry = self.unsigned
        assert entry
        return (
            f"entry {entry.number} ({entry.action} version {entry.version}, by {entry.who}, "
            f"{entry.time}) carries no signature of an allowed signer. It may be forged; decide "
            f"what is champion: retrain rollback {self.ledger.name} --to VERSION --reason WHY"
        )


def look(project: Project, name: str) -> Standing:
    """Reads the ledger of a model, and judges it.

    Raises:
        ValueError: The ledger, or the file with its head, was changed so that it cannot be read.
    """
    head = read_head(project, name)  # before the ledger, which may become longer meanwhile
    model = snapshot.read(project, name)
    model_ledger = ledger.read(model)
    faults = [*model_ledger.broken_chain()]
    if fault := _fault_of_head(project, head, model_ledger):
        faults.append(fault)
    unsigned = _unsigned(project, head, model_ledger)
    return Standing(model_ledger, dict(model.aliases), tuple(faults), unsigned)


def _unsigned(project: Project, head: Head | None, model_ledger: Ledger) -> Entry | None:
    """The first entry at the end of a ledger that no allowed signer stands for.

    Each entry has the digest of the one before it. So a signature stands for all entries up to its
    own; and so does the head in the project, for those from before signatures were demanded.
    """
    if not (project.root / SIGNERS).is_file():
        return None
    vouched = head.number if head and head.ledger == model_ledger.run else 0
    unsigned = None
    for entry in reversed(model_ledger.entries):
        if entry.number <= vouched:
            break
        value = model_ledger.values[ledger.key_of(entry.number)]
        text = signed_text(model_ledger.name, entry.number, value)
        if entry.signature and is_valid(project, text, entry.signature, entry.time):
            break
        unsigned = entry
    return unsigned


def read_head(project: Project, name: str) -> Head | None:
    """The head of a model's ledger, as the project has it; None if it has none.

    Raises:
        ValueError: The file was damaged, such as by a merge.
    """
    path = _head_file(project, name)
    try:
        return Head(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        raise ValueError(
            f"{project.relative(path)} cannot be read. After a merge, keep the side with the "
            "higher number."
        ) from None


def names(project: Project) -> list[str]:
    """The models of whose ledgers the project has the head."""
    return sorted(path.stem for path in (project.root / LEDGERS).glob("*.json"))


def advance(project: Project, model_ledger: Ledger) -> None:
    """Writes the head of a ledger, unless the project has it, or that of another ledger."""
    if not model_ledger.entries or model_ledger.run is None:
        return
    last_entry, old_head = model_ledger.entries[-1], read_head(project, model_ledger.name)
    if old_head and (old_head.ledger != model_ledger.run or old_head.number >= last_entry.number):
        return
    path = _head_file(project, model_ledger.name)
    path.parent.mkdir(exist_ok=True)
    head = Head(model_ledger.run, last_entry.number, last_entry.digest)
    atomic.write_text(path, json.dumps(asdict(head), indent=1) + "\n")


def _fault_of_head(project: Project, head: Head | None, model_ledger: Ledger) -> str | None:
    """How a ledger disagrees with its head; None if it does not.

    A clone may use an MLflow of its own beside the one that the head is of: one whose ledger it has
    begun itself, or, if it has decided nothing yet, the file in its folder.
    """
    if head is None:
        return None
    file = project.relative(_head_file(project, model_ledger.name))
    if head.ledger == model_ledger.run:
        digests = {entry.number: entry.digest for entry in model_ledger.entries}
        if digests.get(head.number) == head.digest:
            return None
        return f"entry {head.number}, which {file} names, was cut off or rewritten"
    note = _note(project, model_ledger.name)
    noted = note.read_text(encoding="utf-8") if note.exists() else None
    is_fresh = noted is None and not model_ledger.entries and project.has_own_mlflow
    if is_fresh or (noted and noted == model_ledger.run):
        return None
    return (
        f"{file} names another one (MLflow run {head.ledger}, {head.number} entries) than this "
        "MLflow has; if that was begun anew on purpose, remove the file"
    )


def note(project: Project, name: str, ledger_run: str) -> None:
    """Notes the MLflow run of the ledger that this clone is about to write to."""
    path = _note(project, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_text(path, ledger_run)


def _head_file(project: Project, name: str) -> Path:
    return project.root / LEDGERS / f"{name}.json"


def _note(project: Project, name: str) -> Path:
    return project.state / LEDGERS / f"{name}.txt"


def value_of(project: Project, decision: Decision, model_ledger: Ledger) -> str:
    """The next entry of a ledger, as it is written.

    Raises:
        ValueError: The entry is too long; or it has to be signed, and cannot be.
    """
    fields = asdict(replace(decision, document=None)) | {
        "document": ledger.digest_of_document(decision.document),
        "before": model_ledger.head,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "who": decision.who or ledger.who(),
    }
    text = signed_text(model_ledger.name, model_ledger.next, compact(fields))
    if signature := sign(project, text, fields["time"]):
        fields["signature"] = signature
    value = compact(fields)
    if len(decision.reason or "") > LONGEST_REASON or len(value) > LENGTH:
        raise ValueError(
            f"The decision on {model_ledger.name} is too long for its ledger: a reason may have "
            f"{LONGEST_REASON} characters."
        )
    return value


def signed_text(name: str, number: int, value: str) -> str:
    """What the signature of an entry is over: all that it says, in which place of which ledger.

    Args:
        name: The name of the model.
        number: The number of the entry.
        value: The entry as it is written, with its signature or without.
    """
    fields = json.loads(value) | {"model": name, "number": number}
    fields.pop("signature", None)
    return compact(fields)


def sign(project: Project, text: str, time: str) -> str | None:
    """Signs a text.

    Args:
        project: The clone.
        text: The text to sign.
        time: ISO 8601, UTC; when the key has to be an allowed one.

    Returns:
        The signature (base64); None if no key is configured and none is demanded.

    Raises:
        ValueError: A signature is demanded and there is no key, or its owner is no allowed signer;
            or the key cannot be used.
    """
    key, is_demanded = os.environ.get(KEY), (project.root / SIGNERS).is_file()
    if not key:
        if is_demanded:
            raise ValueError(
                f"{SIGNERS} demands that entries of the ledger are signed: set {KEY} to the file "
                "of an SSH key that it lists."
            )
        return None
    process = _ssh_keygen("sign", "-q", "-n", NAMESPACE, "-f", key, text=text)
    if process.returncode:
        raise ValueError(f"{KEY}: {key} cannot sign the ledger: {process.stderr.strip()}")
    signature = "".join(process.stdout.split("\n")[1:]).partition("-")[0]
    if is_demanded and not is_valid(project, text, signature, time):
        raise ValueError(f"{KEY}: {key} is no key of an allowed signer; {SIGNERS} lists them.")
    return signature


def check_signing(project: Project) -> None:
    """Checks that a run can sign, before it has worked for hours.

    Raises:
        ValueError: The run cannot sign, as `sign` says.
    """
    sign(project, "", datetime.now(UTC).isoformat(timespec="seconds"))


def is_valid(project: Project, text: str, signature: str, time: str) -> bool:
    """Whether a text was signed by an allowed signer.

    Args:
        project: The clone.
        text: The signed text.
        signature: The signature (base64), as `sign` gives it.
        time: ISO 8601, UTC; when the key had to be an allowed one.

    Raises:
        ValueError: ssh-keygen is not installed.
    """
    lines = [signature[start : start + WIDTH] for start in range(0, len(signature), WIDTH)]
    with TemporaryDirectory() as folder:
        file = Path(folder, "signature")
        file.write_text("\n".join([BEGIN, *lines, END, ""]), encoding="utf-8")
        when = f"-Overify-time={datetime.fromisoformat(time):%Y%m%d%H%M%S}"
        arguments = ("-s", str(file), "-f", str(project.root / SIGNERS), when)
        principals = _ssh_keygen("find-principals", *arguments)
        return principals.returncode == 0 and any(
            _ssh_keygen("verify", *arguments, "-n", NAMESPACE, "-I", name, text=text).returncode
            == 0
            for name in principals.stdout.splitlines()
        )


def _ssh_keygen(action: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["ssh-keygen", "-Y", action, *arguments],
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=os.environ | {"TZ": "UTC0"},  # of the times that it is given
            start_new_session=True,  # so that it asks nobody for a passphrase
        )
    except FileNotFoundError:
        raise ValueError(
            f"ssh-keygen is not installed here, and {SIGNERS} or {KEY} demands signatures: install "
            "OpenSSH's client."
        ) from None
