"""Downloads data sets from the Hugging Face hub."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from retrain.errors import UsageError
from retrain.runs import console
from tasks.data.listing import link_file
from tasks.pull.configurations import CARD, splits_of_files
from tasks.pull.transfer import map_in_threads, reaching


@dataclass(frozen=True)
class HubSource:
    """The Parquet files of a data set on the Hugging Face hub.

    For a data set without any, the hub may have made a copy: `name@refs/convert/parquet`.

    Attributes:
        name: `owner/name`.
        revision: A branch, a tag or a commit.
        configuration: The name of one of its configurations; None for the only one, or the default.
    """

    name: str
    revision: str
    configuration: str | None = None

    def digest(self) -> str:
        """The commit that the revision points to; for a full commit hash the hub is not asked."""
        from huggingface_hub import HfApi

        if re.fullmatch("[0-9a-f]{40}", self.revision):
            return self.revision
        with self._reached():
            return str(HfApi().dataset_info(self.name, revision=self.revision).sha)

    def fetch(self, digest: str, folder: Path, scratch: Path) -> None:
        """Downloads the card and the configuration's files, except those that a killed run has."""
        from huggingface_hub import HfApi, hf_hub_download
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
        downloaded = scratch / "hub"

        def download(name: str) -> None:
            hf_hub_download(
                self.name, name, repo_type="dataset", revision=digest, local_dir=downloaded
            )

        with self._reached():
            listed = HfApi().list_repo_files(self.name, revision=digest, repo_type="dataset")
            card = [name for name in listed if name == CARD]
            map_in_threads(download, card)
            belong = splits_of_files(listed, downloaded / CARD, self.configuration)
            names = [name for name in belong if name.endswith(".parquet")]
            if not names:
                raise UsageError(
                    f"data.path: {self.name} on the Hugging Face hub has no Parquet files. Try "
                    f"{self.name}@refs/convert/parquet, where the hub keeps a copy of many."
                )
            with console.progress(f"downloading {len(names):,} files"):
                map_in_threads(download, names)
        for name in [*card, *names]:
            link_file(downloaded / name, folder / name)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        from huggingface_hub import errors

        with reaching(
            f"The data set {self.name} on the Hugging Face hub cannot be read. Set HF_ENDPOINT to "
            "a mirror, or data.path to a folder with its Parquet files and data.format to parquet."
        ):
            try:
                yield
            except (
                errors.HFValidationError,
                errors.RepositoryNotFoundError,
                errors.RevisionNotFoundError,
            ) as error:
                raise UsageError(
                    f"data.path: the Hugging Face hub gives no data set {self.name} at revision "
                    f"{self.revision}. If it is private or gated, log in first: hf auth login"
                ) from error
