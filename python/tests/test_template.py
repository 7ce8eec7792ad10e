"""What `hekate python new NAME` makes passes its own tests."""

import os
import subprocess
import sys

import fake_host

TEMPLATE = fake_host.PYTHON / "hekate" / "template"


def test_a_new_translator_passes_its_tests(tmp_path):
    directory = tmp_path / "my_first"
    directory.mkdir()
    for file in TEMPLATE.iterdir():
        if file.is_file():
            text = file.read_text().replace("{{name}}", "my_first").replace("{{Class}}", "MyFirst")
            assert "{{" not in text
            (directory / file.name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "hekate.testing", str(directory)], cwd=tmp_path, text=True,
        env={**os.environ, "PYTHONPATH": str(fake_host.PYTHON)}, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout
