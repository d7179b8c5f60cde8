"""The promises of SECURITY.md that no other test has for its subject; and that the others exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from tiny_image_models import write_image_model

from mcit.config.schema import ModelConfig
from mcit.errors import DataError
from mcit.models.image import load_image_model

ROOT = Path(__file__).parent.parent


def test_every_test_that_security_names_exists():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w*]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 10
    for pattern, test in named:
        files = list(ROOT.glob(pattern))
        assert files, pattern
        if test:
            assert f"def {test}(" in files[0].read_text(encoding="utf-8")


def test_code_that_comes_with_a_checkpoint_is_not_run(tmp_path):
    """A configuration that names its own classes, as for trust_remote_code=True."""
    folder = write_image_model(tmp_path / "model", "vit")
    mark = tmp_path / "ran"
    code = f"from pathlib import Path\nPath({str(mark)!r}).touch()\n"
    code += "from transformers import ViTConfig as Own, ViTModel as OwnModel\n"
    (folder / "own.py").write_text(code, encoding="utf-8")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["auto_map"] = {"AutoConfig": "own.Own", "AutoModel": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    # of a kind that transformers knows, it is loaded by what transformers has
    load_image_model(str(folder), ModelConfig(name=str(folder)))
    assert not mark.exists()
    # of another kind, it is refused
    config["model_type"] = "own"
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(DataError):
        load_image_model(str(folder), ModelConfig(name=str(folder)))
    assert not mark.exists()


def test_weights_that_are_a_pickle_are_not_loaded(tmp_path):
    folder = write_image_model(tmp_path / "model", "vit")
    (folder / "model.safetensors").unlink()
    mark = tmp_path / "ran"

    class Exploit:
        def __reduce__(self):
            return (Path.touch, (mark,))

    torch.save({"weight": Exploit()}, folder / "pytorch_model.bin")
    with pytest.raises(DataError, match="the weights cannot be loaded"):
        load_image_model(str(folder), ModelConfig(name=str(folder)))
    assert not mark.exists()
