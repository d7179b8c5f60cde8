"""`mcit export`: the trained network of a run as a Hugging Face folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from mcit.arguments import some_text
from mcit.errors import ConfigError
from mcit.files import find_folder_problem

HELP = "write the trained network of a run as a Hugging Face folder"
CARD = """---
library_name: mcit
tags: [continual-learning]
---

# {title}

Learned {tasks}, in this order, with method `{method}` (seed {seed}) by
[mcit](https://github.com/mcit/mcit) {version}.

{estimator}

Scores in percent after each task; rows are checkpoints, columns are tasks:

{table}

```python
from mcit.export import load_exported

learner = load_exported("{folder}")
```

Made by `{command}`.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `mcit export`."""
    parser.add_argument("run", type=some_text, metavar="RUN", help="folder of a run")
    parser.add_argument(
        "--output", type=some_text, required=True, metavar="DIR", help="folder to write to"
    )


def run(arguments: argparse.Namespace) -> int:
    """Load the newest checkpoint of a run and write its learner."""
    folder = Path(arguments.run)
    output = Path(arguments.output)
    problem = find_folder_problem(output, "--output")
    if problem is not None:
        raise ConfigError([problem])
    if not folder.is_dir():
        raise ConfigError([f"{folder} is not a directory; give the folder of a run"])
    from mcit.api import load_run
    from mcit.export import export_learner

    trained = load_run(folder)
    answers = {}
    for name in trained.tasks:
        task = trained.find_task(name)
        answers[task.head.name] = task.output_names()
    export_learner(trained.learner, output, _write_card(trained, folder, arguments.given), answers)
    print(f"written to {output}")
    return 0


def _write_card(trained: object, folder: Path, command: str) -> str:
    import mcit
    from mcit.files import read_object

    scores = read_object(folder / "scores.json") or {}
    tasks = scores["tasks"]
    lines = [f"| after | {' | '.join(tasks)} |", "|---" * (len(tasks) + 1) + "|"]
    for task, row in zip(tasks, scores["matrix"], strict=False):
        cells = [f"{score:.2f}" for score in row]
        cells += [""] * (len(tasks) - len(row))
        lines.append(f"| {task} | {' | '.join(cells)} |")
    return CARD.format(
        title=folder.name,
        tasks=", ".join(tasks),
        method=scores["method"],
        seed=scores["seed"],
        version=mcit.__version__,
        estimator=scores["estimator"],
        table="\n".join(lines),
        folder=folder.name,
        command=command,
    )
