"""Signs entries of the ledger, and checks signatures, with SSH keys as git does (`ssh-keygen -Y`).

The environment variable RETRAIN_SIGNING_KEY names a private key, or a public one whose private one
an agent holds. The file `allowed_signers` at the project's root says whose signatures count, in the
format of ssh-keygen (a name, the key's type, the key). Where it exists, every entry has to be
signed.
"""

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from retrain.project import Project

KEY = "RETRAIN_SIGNING_KEY"
SIGNERS = "allowed_signers"
NAMESPACE = "retrain-ledger"  # a signature for another purpose, such as a commit's, does not count
BEGIN, END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
WIDTH = 70  # of the lines between them


def are_demanded(project: Project) -> bool:
    """Whether entries have to be signed."""
    return _signers(project).is_file()


def sign(project: Project, text: str, time: str) -> str | None:
    """Signs a text.

    Args:
        project: The clone.
        text: The text.
        time: ISO 8601, UTC; when the key has to be an allowed one.

    Returns:
        The signature (base64); None if no key is configured and none is demanded.

    Raises:
        ValueError: A signature is demanded and there is no key, or its owner is no allowed signer;
            or the key cannot be used.
    """
    key = os.environ.get(KEY)
    if not key:
        if are_demanded(project):
            raise ValueError(
                f"{SIGNERS} demands that entries of the ledger are signed: set {KEY} to the file "
                "of an SSH key that it lists."
            )
        return None
    done = _ssh_keygen("sign", "-q", "-n", NAMESPACE, "-f", key, given=text)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["ssh-keygen failed"])[-1]
        raise ValueError(f"{KEY}: the ledger cannot be signed with {key}: {said}")
    signature = "".join(done.stdout.split("\n")[1:]).partition("-")[0]
    if are_demanded(project) and not is_valid(project, text, signature, time):
        raise ValueError(f"{KEY}: {key} is no key of an allowed signer; {SIGNERS} lists them.")
    return signature


def check(project: Project) -> None:
    """Checks that a run can sign, before it has worked for hours.

    Raises:
        ValueError: As `sign` does.
    """
    sign(project, "", datetime.now(UTC).isoformat(timespec="seconds"))


def is_valid(project: Project, text: str, signature: str, time: str) -> bool:
    """Whether a text was signed by an allowed signer.

    Args:
        project: The clone.
        text: The text.
        signature: As `sign` gives it.
        time: ISO 8601, UTC; when the key had to be an allowed one.

    Raises:
        ValueError: ssh-keygen is not installed.
    """
    signers = str(_signers(project))
    lines = [signature[start : start + WIDTH] for start in range(0, len(signature), WIDTH)]
    with TemporaryDirectory() as folder:
        file = Path(folder, "signature")
        file.write_text("\n".join([BEGIN, *lines, END, ""]), encoding="utf-8")
        when = f"-Overify-time={datetime.fromisoformat(time):%Y%m%d%H%M%S}"
        given = ("-s", str(file), "-f", signers, when)
        found = _ssh_keygen("find-principals", *given)
        return found.returncode == 0 and any(
            _ssh_keygen("verify", *given, "-n", NAMESPACE, "-I", name, given=text).returncode == 0
            for name in found.stdout.splitlines()
        )


def _signers(project: Project) -> Path:
    return project.root / SIGNERS


def _ssh_keygen(
    action: str, *arguments: str, given: str | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["ssh-keygen", "-Y", action, *arguments],
            input=given or "",
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
