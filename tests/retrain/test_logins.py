"""Passwords and tokens in URLs are refused where they come in."""

import pytest

from flows.predict import check_input
from retrain.errors import UsageError, has_login, without_login
from retrain.params import load_workload
from retrain.project import Project

LOGINS = [
    "https://ann:geheim-1@host.org/pets.zip",
    "https://geheim-2@host.org/pets.zip",
    "https://host.org/pets.zip?rev=3&token=geheim-3",
    "https://host.org/pets.zip?X-Amz-Credential=geheim-4%2Fs3&X-Amz-Signature=geheim-5&x=1",
    "zip://*.png::https://ann:geheim-6@host.org/pets.zip",
]
PUBLIC = [
    "data/a@b:c",
    "https://host.org/pets@v1.zip?rev=3&design=4",
    "sftp://me@host/pets",
    "me/pets@v1",
]


@pytest.mark.parametrize("url", LOGINS)
def test_a_url_with_a_login_is_refused_and_the_login_is_not_repeated(tmp_path, url):
    params = tmp_path / "params.yaml"
    params.write_text("workloads: {a: {data: {path: data}, model: {family: vit}}}")
    for refused in (
        lambda: load_workload(params, "a", {"data.path": url}),
        lambda: check_input(Project(tmp_path), url),
    ):
        with pytest.raises(UsageError, match=r"belongs into ~/\.netrc") as error:
            refused()
        assert "geheim" not in str(error.value)


@pytest.mark.parametrize("text", PUBLIC)
def test_what_is_no_login_is_taken(text):
    assert not has_login(text)


def test_the_url_of_a_server_is_shown_without_its_login():
    shown = without_login("postgresql+psycopg2://ann:ge@he/im@host:1/db?password=geheim")
    assert shown == "postgresql+psycopg2://host:1/db"
