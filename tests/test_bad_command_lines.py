"""Bad command lines of every command: code 2, one message with a remedy, and nothing written."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from report_runs import make_scores, write_run

from mcit.cli import main

ROOT = Path(__file__).parent.parent
ROWS = [[80.0], [60.0, 90.0], [50.0, 80.0, 70.0], [40.0, 70.0, 60.0, 85.0]]
# What a message offers: the nearest word, what there is, what would do, or the usage of the
# command.
REMEDY = re.compile(
    r"did you mean|usage: |such as|names in configs"
    r"|\((choices|keys|tasks|methods|names|tables|settings|learned so far|for \d+ classes): "
    r"|choose|give|use |leave |expected|needs? |must (be|have|lie)|is for |go together|one of "
    r"them|fewer|at least"
    r"|names the folder|write |multiply|run it again|make it again|unpack|is one of|its first "
    r"row|one row per|once is"
    r"|run the order|go into|such files end in|counts from"
    r"|pass |remove |prints all"
    r"|takes no split|cannot be mixed|can hold one|is an option of|are learned by"
)

FILES = {
    "file.txt": "a file\n",
    "empty.yaml": "",
    "comments.yaml": "# nothing yet\n",
    "list.yaml": "- vqa\n",
    "words.yaml": "hello\n",
    "broken.yaml": "order: [vqa\n",
    "twice.yaml": "seed: 1\nseed: 2\n",
    "unknown.yaml": "ordr: [vqa]\n",
    "section.yaml": "order: [shapes:5x4]\nmodel: 3\n",
    "typed.yaml": "order: [shapes:5x4]\nseed: one\n",
    "grid-none.yaml": "order: shapes:5x4\n",
    "grid-both.yaml": "order: vqa\norders: [vqa]\nmethods: [ewc]\n",
    "grid-unknown.yaml": "order: shapes:5x4\nmethod: [ewc]\n",
    "grid-twice.yaml": "order: shapes:5x4\nmethods: [ewc, mas, ewc]\n",
    "grid-negative.yaml": "order: shapes:5x4\nmethods: {ewc: [-1]}\n",
    "grid-preset.yaml": "order: shapes:5x4\nmethods: [ewc]\npreset: exat\n",
    "grid-seeds.yaml": "order: shapes:5x4\nmethods: [ewc]\nseeds: a-b\n",
    "grid-strength.yaml": "order: shapes:5x4\nmethods: {finetune: [1, 2]}\n",
    "grid-task.yaml": "order: shaps:5x4\nmethods: [ewc]\n",
    "empty.csv": "",
    "words.csv": "vqa,nlvr2\na,b\n",
    "numbers.csv": "1,2\n3,4\n",
    "fractions.csv": "vqa,nlvr2\n0.8,\n0.6,0.9\n",
    "long.csv": "vqa,nlvr2\n80,1,2,3\n",
    "many.csv": "vqa\n80\n70\n",
    "hole.csv": "vqa,nlvr2\n80,\n,90\n",
    "high.csv": "vqa,nlvr2\n80,\n60,190\n",
    "header.csv": "vqa,nlvr2\n",
    "list.json": "[]",
    "cut.json": "{",
    "bare.json": "{}",
    "named.json": '{"tasks": ["a"], "matrix": [[80]], "method": 5}',
    "odd.json": '{"tasks": ["a"], "matrix": 80}',
    "noise.safetensors": "noise",
    "begun/config.yaml": "order: [shapes:5x4]\n",
    "cut/scores.json": '{"method": "ewc"',
    "part/scores.json": '{"method": "ewc"}',
}

RUN = {
    "run": "no tasks are given: use --order",
    "run --order ''": "no tasks are given: use --order",
    "run --order nlvr": "unknown task 'nlvr'; did you mean 'nlvr2'?",
    "run --order VQA": "unknown task 'VQA'; did you mean 'vqa'?",
    "run --order speech": "unknown task 'speech' (tasks: ",
    "run --order ../vqa": "unknown task '../vqa'",
    "run --order vqa,,nlvr2": "'order' has an empty item: 'vqa,,nlvr2'",
    "run --order vqa,": "'order' has an empty item: 'vqa,'",
    "run --order ,vqa": "'order' has an empty item: ',vqa'",
    "run --order vqa nlvr2": "unexpected word 'nlvr2'; items of a list are joined by commas",
    "run --order vqa,vqa": "tasks given twice in the order: vqa",
    "run --order vqa,shapes:5x4": "cannot be mixed in one order",
    "run --order shapes": "'shapes' needs a split, such as shapes:",
    "run --order shapes:": "'shapes' needs a split, such as shapes:",
    "run --order shapes:3x3": "split 'shapes:3x3' stands for 9 classes where shapes has 20",
    "run --order shapes:many": "split 'shapes:many' is neither TASKSxSIZE nor START+TASKSxSIZE",
    "run --order shapes:0x4": "shapes:0x4",
    "run --order vqa:5x4": "task 'vqa' takes no split",
    "run --order shapes:5x4,cifar100:10x10": "an order can hold one class-incremental data set",
    "run --order shapes:5x4 --method ewcdr": "unknown method 'ewcdr'; did you mean 'ewc_dr'?",
    "run --order shapes:5x4 --method ''": "argument --method: expected a word, found an empty one",
    "run --order shapes:5x4 --method": "argument --method: expected one argument",
    "run --order shapes:5x4 --method single": "class-incremental tasks share one: use 'joint'",
    "run --order shapes:5x4 --method adapters": "method 'adapters' must know the task at test time",
    "run --metod ewc --order vqa": "unknown option '--metod'; did you mean '--method'?",
    "run --ordr vqa": "unknown option '--ordr'; did you mean '--order'?",
    "run --order vqa --sed 3": "unknown option '--sed'; did you mean '--seed'?",
    "run --order vqa --dryrun": "unknown option '--dryrun'; did you mean '--dry-run'?",
    "run --order vqa --nonsense": "unknown option '--nonsense'",
    "run --order vqa -z": "unknown option '-z'",
    "run --order vqa --s": "ambiguous option: --s could match",
    "run shapes:5x4": "unexpected word 'shapes:5x4'",
    "run --order shapes:5x4 --seed one": "argument --seed: expected a whole number such as 1, found 'one'",
    "run --order shapes:5x4 --seed 1.5": "argument --seed: expected a whole number such as 1, found '1.5'",
    "run --order shapes:5x4 --seed 1-3": "argument --seed: expected a whole number such as 1, found '1-3'",
    "run --order shapes:5x4 --seed -1": "'seed' must be from 0",
    "run --order shapes:5x4 --seed 99999999999": "'seed' must be from 0 to 4294967295",
    "run --order shapes:5x4 --preset exat": "unknown choice 'exat'; did you mean 'exact'?",
    "run --order vqa --preset exact": "preset 'exact' is for class-incremental orders",
    "run --order vqa --on-bad-record skp": "unknown choice 'skp'; did you mean 'skip'?",
    "run --config nowhere.yaml": "no configuration file 'nowhere.yaml'",
    "run --config climbb": "no configuration file 'climbb'; did you mean 'climb'?",
    "run --config ''": "argument --config: expected a word, found an empty one",
    "run --config empty": "no configuration file 'empty'",
    "run --config empty.yaml": "empty.yaml is empty, or holds nothing but comments",
    "run --config comments.yaml": "comments.yaml is empty, or holds nothing but comments",
    "run --config list.yaml": "list.yaml holds a list where names with values are expected",
    "run --config words.yaml": "words.yaml holds a text where names with values are expected",
    "run --config broken.yaml": "broken.yaml is not valid YAML",
    "run --config twice.yaml": "'seed' is given twice",
    "run --config unknown.yaml": "unknown key 'ordr'; did you mean 'order'?",
    "run --config section.yaml": "model: expected a section",
    "run --config typed.yaml": "'seed' must be a whole number, found 'one'",
    "run --order shapes:5x4 --data-root nowhere": "--data-root 'nowhere' is not a directory",
    "run --order shapes:5x4 --data-root file.txt": "--data-root 'file.txt' is not a directory",
    "run --order shapes:5x4 --data-root ''": "argument --data-root: expected a word, found an empty one",
    "run --order cifar100:10x10": "no data root given: CIFAR-100 is",
    "run --order cifar100:10x10 --data-root empty": "CIFAR-100",
    "run --order nlvr2 --data-root empty": "nlvr2/data/train.json is missing",
    "run --order shapes:5x4 --set seed": "override 'seed' is not of the form name=value",
    "run --order shapes:5x4 --set =3": "override '=3' is not of the form name=value",
    "run --order shapes:5x4 --set a..b=3": "override 'a..b=3' is not of the form",
    "run --order shapes:5x4 --set sed=3": "unknown key 'sed'; did you mean 'seed'?",
    "run --order shapes:5x4 --set training.worker=2": "unknown key 'training.worker'; did you mean 'workers'?",
    "run --order shapes:5x4 --set training.workers=two": "'training.workers' must be a whole number",
    "run --order shapes:5x4 --set training.workers=-1": "'workers' must be at least 0",
    "run --order shapes:5x4 --set training.log_every=0": "'log_every' must be at least 1",
    "run --order shapes:5x4 --set training.clip_norm=0": "'clip_norm' must be above 0",
    "run --order shapes:5x4 --set training.split=tst": "'training.split' is 'tst'",
    "run --order shapes:5x4 --set training.mixed_precision=fp8": "'training.mixed_precision' is 'fp8'",
    "run --order shapes:5x4 --set training=3": "training: expected a section",
    "run --order shapes:5x4 --set training.score_before=maybe": "'training.score_before' must be true or false",
    "run --order shapes:5x4 --set checkpoint.keep=0": "'keep' must be at least 1",
    "run --order shapes:5x4 --set checkpoint.every_minutes=0": "'every_minutes' must be above 0",
    "run --order shapes:5x4 --set model.lora.rank=-1": "'rank' must be at least 0",
    "run --order shapes:5x4 --set model.width=0": "'width' must be at least 1",
    "run --order shapes:5x4 --set model.name=embedded": "'embedded', a ViLT; use 'resnet18' for shapes, or",
    "run --order vqa,vcr --set model.name=resnet18": "'resnet18', which reads no text; use a ViLT for vqa, vcr",
    "run --order vqa,vcr --set model.width=16": "model.width is an option of resnet18",
    "run --order shapes:5x4 --set method.strength=3": "unknown key 'method.strength' (keys: fresh_pairs)",
    "run --order shapes:5x4 --method ewc --set method.strenth=1": "'method.strenth'; did you mean 'strength'?",
    "run --order shapes:5x4 --method ewc --set method.strength=strong": "'method.strength' must be a number",
    "run --order shapes:5x4 --method ewc --set method.strength=-1": "mcit: method.strength must be at least 0, found -1",
    "run --order shapes:5x4 --method ewc --set method.strength=.nan": "must be a finite number of single precision",
    "run --order shapes:5x4 --method ewc --set method.merge=summ": "'method.merge' is 'summ'",
    "run --order shapes:5x4 --method ewc --set method.decay=2": "method.decay must lie between 0 and 1",
    "run --order shapes:5x4 --method ewc --set method.estimator.scor=1": "did you mean 'score'?",
    "run --order shapes:5x4 --method ewc --set method.estimator.score=plane": "plane",
    "run --order shapes:5x4 --set methods.ewcc.strength=1": "unknown method 'ewcc'; did you mean 'ewc'?",
    "run --order shapes:5x4 --set tasks.shaps.classes=4": "unknown task 'shaps'; did you mean 'shapes'?",
    "run --order shapes:5x4 --set tasks.shapes.clases=4": "did you mean 'classes'?",
    "run --order shapes:5x4 --set tasks.shapes=4": "'tasks.shapes' must be a section",
    "run --order vqa --set tasks.vqa.recipe.epoch=1": "'tasks.vqa.recipe.epoch'; did you mean 'epochs'?",
    "run --order vqa --set tasks.vqa.recipe.betas=0.9,1.5": "recipe.betas must be at least 0 and below 1",
    "run --order vqa --set tasks.vqa.recipe.betas=0.9": "'tasks.vqa.recipe.betas' must",
    "run --order vqa --set tasks.vqa.recipe.epochs=-1": "recipe.epochs must be 0 or more",
    "run --order shapes:5x4 --output file.txt": "file.txt is a file; --output names the folder to write to",
    "run --order shapes:5x4 --output file.txt/run": "file.txt is a file; --output names the folder to write to",
    "run --order shapes:5x4 --output ''": "argument --output: expected a word, found an empty one",
    "run --order shapes:5x4 --output run": "run already holds a run; choose another --output, or pass --overwrite",
    "run --order shapes:5x4 --stage-cache file.txt": "file.txt is a file; --stage-cache names the folder",
    "run --order shapes:5x4 --dry-run --stage-cache file.txt": "file.txt is a file; --stage-cache names the folder",
    "run --order shapes:5x4 --tracker tensorbord": "unknown tracker 'tensorbord'; did you mean 'tensorboard'?",
    "run --order shapes:5x4 --single nowhere": "'single' names 'nowhere', which has no scores.json",
    "run --order shapes:5x4 --single run": "is a run of method 'ewc'; knowledge transfer needs 'single'",
    "run --order shapes:5x4 --single cut": "cut/scores.json is not valid JSON",
    "run --order shapes:5x4 --single part": "part/scores.json holds no scores ('tasks'); run the order",
    "run --order shapes:5x4 --resume --overwrite": "--resume continues a run, --overwrite discards it: pass only one",
    "run --resume --output nowhere": "nothing to resume in nowhere; pass --order to start a run",
    "run --resume --output file.txt": "nothing to resume in file.txt; pass --order to start a run",
}

SWEEP = {
    "sweep": "no methods are given: use --methods",
    "sweep --order shapes:5x4": "no methods are given: use --methods",
    "sweep --methods ewc": "no tasks are given: use --order",
    "sweep --order shaps:5x4 --methods ewc": "unknown task 'shaps'; did you mean 'shapes'?",
    "sweep --order shapes:5x4 --methods ewcc": "unknown method 'ewcc'; did you mean 'ewc'?",
    "sweep --order shapes:5x4 --methods ewc,,mas": "argument --methods: expected items such as a,b",
    "sweep --order shapes:5x4 --methods ewc,ewc": "--methods lists 'ewc' twice",
    "sweep --order shapes:5x4 --methods ewc mas": "no grid file 'mas' (items of a list such as --methods are joined",
    "sweep --order shapes:5x4 --order shapes:5x4 --methods ewc": "orders lists 'shapes:5x4' twice",
    "sweep --order shapes:5x4 --metods ewc": "unknown option '--metods'; did you mean '--methods'?",
    "sweep --order shapes:5x4 --methods ewc --strengths": "argument --strengths: expected one argument",
    "sweep --order shapes:5x4 --methods ewc --strengths strong": "--strengths strong: expected numbers such as 100,300",
    "sweep --order shapes:5x4 --methods ewc --strengths 1,,2": "--strengths 1,,2: expected numbers such as 100,300",
    "sweep --order shapes:5x4 --methods ewc --strengths 1,1": "strengths lists 1.0 twice",
    "sweep --order shapes:5x4 --methods ewc --strengths ewcc=1": "'ewcc' is not in --methods; did you mean 'ewc'?",
    "sweep --order shapes:5x4 --methods ewc --strengths ewc=-1": "a strength must be at least 0, found -1",
    "sweep --order shapes:5x4 --methods ewc --strengths -1": "method.strength must be at least 0, found -1",
    "sweep --order shapes:5x4 --methods ewc --strengths=-1": "method.strength must be at least 0, found -1",
    "sweep --order shapes:5x4 --methods finetune --strengths 10": "none of the methods has one (finetune)",
    "sweep --order shapes:5x4 --methods finetune --strengths finetune=1": "method 'finetune' has no strength",
    "sweep --order shapes:5x4 --methods ewc --strengths 1 --set method.strength=3": "sets what --strengths lists",
    "sweep --order shapes:5x4 --methods ewc --set seed=3": "'seed=3' cannot be set for every run of a grid",
    "sweep --order shapes:5x4 --methods ewc --set order=vqa": "cannot be set for every run of a grid; use --order",
    "sweep --order shapes:5x4 --methods ewc --set method.name=mas": "of a grid; use --methods",
    "sweep --order shapes:5x4 --methods ewc --set method.decai=1": "did you mean 'decay'?",
    "sweep --order shapes:5x4 --methods ewc --set training.workers=x": "'training.workers' must be a whole number",
    "sweep --order shapes:5x4 --methods ewc --seeds one": "seeds are whole numbers from 0, such as 1,2,3 or 1-3",
    "sweep --order shapes:5x4 --methods ewc --seeds 3-1": "seeds '3-1' is not a range from a smaller seed to a larger one",
    "sweep --order shapes:5x4 --methods ewc --seeds 1,1": "seeds lists 1 twice",
    "sweep --order shapes:5x4 --methods ewc --seeds 1-3,2": "seeds lists 2 twice",
    "sweep --order shapes:5x4 --methods ewc --seeds 1,,2": "argument --seeds: expected items such as a,b",
    "sweep --order shapes:5x4 --methods ewc --seeds=-1": "seeds are whole numbers from 0",
    "sweep --order shapes:5x4 --methods ewc --seeds 0-99999999": "is not a range from a smaller seed to a larger one",
    "sweep --order shapes:5x4 --methods ewc --preset exat": "unknown choice 'exat'; did you mean 'exact'?",
    "sweep --order shapes:5x4 --methods ewc --config climbb": "did you mean 'climb'?",
    "sweep --order shapes:5x4 --methods ewc --config empty.yaml": "empty.yaml is empty",
    "sweep --order shapes:5x4 --methods ewc --data-root nowhere": "--data-root 'nowhere' is not a directory",
    "sweep --order shapes:5x4 --methods ewc --output file.txt": "file.txt is a file; --output names the folder",
    "sweep --order shapes:5x4 --methods ewc --output file.txt/x": "file.txt is a file; --output names the folder",
    "sweep --order shapes:5x4 --methods ewc --output ''": "argument --output: expected a word, found an empty one",
    "sweep --order shapes:5x4 --methods ewc --stage-cache file.txt": "file.txt is a file; --stage-cache names",
    "sweep --order shapes:5x4 --methods ewc --jobs 0": "--jobs must be at least 1, found 0",
    "sweep --order shapes:5x4 --methods ewc --jobs two": "argument --jobs: expected a whole number such as 1",
    "sweep --order shapes:5x4 --methods ewc --threads 0": "--threads must be at least 1, found 0",
    "sweep --order shapes:5x4 --methods ewc --gpus 0 --jobs 2": "--jobs 2 needs as many --gpus, found 1",
    "sweep --order shapes:5x4 --methods ewc --gpus 0,,1": "argument --gpus: expected items such as a,b",
    "sweep --order shapes:5x4 --methods ewc --select 9": "--select 9: the order has 5 tasks; choose by that many or fewer",
    "sweep --order shapes:5x4 --methods ewc --select 1": "--select needs at least 2 tasks, found 1",
    "sweep --order shapes:5x4 --methods ewc --select 0": "--select needs at least 2 tasks, found 0",
    "sweep --order shapes:5x4 --methods ewc --select two": "argument --select: expected a whole number such as 1",
    "sweep --order shapes:5x4 --methods ewc --select-seeds 7": "--select-seeds is for --select",
    "sweep --order shapes:5x4 --methods ewc --select --select-seeds 1,9": "--select-seeds and --seeds share 1",
    "sweep --order shapes:5x4 --methods ewc --select --match stiffness": "use one of them",
    "sweep --order shapes:5x4 --methods ewc --match stifness": "unknown choice 'stifness'; did you mean 'stiffness'?",
    "sweep --order shapes:5x4 --methods ewc --match stiffness": "--match needs two methods that hold weights",
    "sweep --order shapes:5x4 --methods ewc,mas --match stiffness": "--match needs strengths for the reference, such as",
    "sweep --order shapes:5x4 --methods ewc --reference ewc": "--reference is for --match",
    "sweep --order shapes:5x4 --order shapes:2x10 --methods ewc,mas --strengths 1 --match stiffness": "takes one order",
    "sweep nowhere.yaml": "no grid file 'nowhere.yaml'",
    "sweep empty.yaml": "empty.yaml is empty, or holds nothing but comments",
    "sweep list.yaml": "list.yaml holds a list where names with values",
    "sweep broken.yaml": "broken.yaml is not valid YAML",
    "sweep grid-none.yaml": "no methods are given: use --methods",
    "sweep grid-both.yaml": "has both 'order' and 'orders'; several orders go into 'orders'",
    "sweep grid-unknown.yaml": "unknown key 'method'; did you mean 'methods'?",
    "sweep grid-twice.yaml": "methods lists 'ewc' twice",
    "sweep grid-negative.yaml": "a strength must be at least 0, found -1",
    "sweep grid-preset.yaml": "'preset' is 'exat' (text); did you mean 'exact'?",
    "sweep grid-seeds.yaml": "seeds are whole numbers from 0, such as 1,2,3 or 1-3; found 'a-b'",
    "sweep grid-strength.yaml": "method 'finetune' has no strength",
    "sweep grid-task.yaml": "unknown task 'shaps'; did you mean 'shapes'?",
}

REPORT = {
    "report": "the following arguments are required: RUN",
    "report ''": "argument RUN: expected a word, found an empty one",
    "report nowhere": "there is no run at nowhere: give the folder of a run",
    "report run nowhere": "there is no run at nowhere: give the folder of a run",
    "report empty": "empty holds no run: there is no scores.json in it or below it",
    "report empty begun": "none of the paths holds a run",
    "report begun": "begun holds no run: none of its tasks is finished yet",
    "report cut": "cut/scores.json is not valid JSON",
    "report part": "'seed' is missing; 'track' is missing",
    "report changed": "'seen' must be a list, found 7",
    "report file.txt": "file.txt",
    "report noise.safetensors": "noise.safetensors is not a matrix of scores: such files end in .csv",
    "report empty.csv": "empty.csv is empty: its first row names the tasks",
    "report words.csv": "must be a number, found 'a' (text)",
    "report numbers.csv": "numbers.csv begins with numbers: its first row names the tasks",
    "report fractions.csv": "no score is above 0.9, so these look like fractions",
    "report long.csv": "long.csv: a row has 4 cells, the header 2",
    "report many.csv": "many.csv has 1 tasks but more rows",
    "report hole.csv": "hole.csv: a row of the matrix needs a percentage for vqa, nlvr2",
    "report high.csv": "must be a percentage from 0 to 100, found 190.0",
    "report header.csv": "header.csv has no scores: its first row names the tasks",
    "report list.json": "list.json must hold one JSON object, found a list",
    "report cut.json": "cut.json is not valid JSON",
    "report bare.json": "bare.json needs `tasks`, a list of names",
    "report odd.json": "odd.json needs `tasks`, a list of names",
    "report run --format pdf": "unknown choice 'pdf'",
    "report run --format latx": "unknown choice 'latx'; did you mean 'latex'?",
    "report run --outptu x": "unknown option '--outptu'; did you mean '--output'?",
    "report run --output file.txt": "file.txt cannot be written to (File exists); choose another --output",
    "report run --output file.txt/x": "file.txt/x cannot be written to (Not a directory); choose another --output",
    "report run --output ''": "argument --output: expected a word, found an empty one",
}

EXPLORE = {
    "explore": "the following arguments are required: PATH",
    "explore ''": "argument PATH: expected a word, found an empty one",
    "explore nowhere": "there is no importance at nowhere: give a file, or the folder of a run",
    "explore nowhere elsewhere": "there is no importance at elsewhere: give a file",
    "explore empty": "there is no importance at empty: give a file that Importance.save wrote",
    "explore noise.safetensors": "noise.safetensors is not a file of importance, or damaged",
    "explore run --task vqa": "--task and --class go together",
    "explore run --class 0": "--task and --class go together",
    "explore run --task vqaa --class 0": "unknown task 'vqaa'; did you mean 'vqa'?",
    "explore run --task vqa --class one": "argument --class: expected a whole number such as 1, found 'one'",
    "explore run --task vqa --class -1": "--class counts from 0, found -1",
    "explore run --task vqa --class 0 --samples 0": "--samples must be at least 1, found 0",
    "explore run --task vqa --class 0 --samples few": "argument --samples: expected a whole number such as 1",
    "explore run begun --task vqa --class 0": "--task looks at a single run, found 2 paths",
    "explore run --task vqa --class 0": "has no checkpoints/, so only its scores are left; run it again",
    "explore empty --task vqa --class 0": "empty has no config.yaml; give the folder of a run",
    "explore run --output file.txt": "file.txt is a file; --output names the folder to write to",
    "explore run --clas 3": "--task and --class go together",
    "explore run --tsk vqa": "unknown option '--tsk'; did you mean '--task'?",
}

EXPORT = {
    "export": "the following arguments are required: RUN, --output",
    "export run": "the following arguments are required: --output",
    "export '' --output x": "argument RUN: expected a word, found an empty one",
    "export nowhere --output x": "nowhere is not a directory; give the folder of a run",
    "export file.txt --output x": "file.txt is not a directory; give the folder of a run",
    "export empty --output x": "empty has no config.yaml; give the folder of a run",
    "export begun --output x": "begun has no checkpoints/, so only its scores are left; run it again",
    "export run --output file.txt": "file.txt is a file; --output names the folder to write to",
    "export run --outptu x": "unknown option '--outptu'; did you mean '--output'?",
}

REPRODUCE = {
    "reproduce cifra100": "no table 'cifra100'; did you mean 'cifar100'?",
    "reproduce ''": "argument table: expected a word, found an empty one",
    "reproduce --run": "--run needs the name of a table: mcit reproduce TABLE (tables: ",
    "reproduce --only ewc": "--only needs the name of a table",
    "reproduce cifar100 climb": "unexpected word 'climb'",
    "reproduce cifar100 --only ewcc": "the table has no method 'ewcc'; did you mean 'ewc'?",
    "reproduce cifar100 --only ewc,ewc": "--only lists 'ewc' twice",
    "reproduce cifar100 --only ewc,,mas": "argument --only: expected items such as a,b",
    "reproduce cifar100 --setting bigstrt-10": "the table has no setting 'bigstrt-10'; did you mean 'bigstart-10'?",
    "reproduce cifar100 --seeds one": "seeds are whole numbers from 0, such as 1,2,3 or 1-3; found 'one'",
    "reproduce cifar100 --seeds 1,1": "--seeds lists '1' twice",
    "reproduce cifar100 --run": "--run needs --data-root",
    "reproduce cifar100 --run --data-root nowhere": "--data-root 'nowhere' is not a directory",
    "reproduce cifar100 --record": "the numbers of cifar100 are the paper's: --record is for tables of our own",
    "reproduce shapes --record --only ewc": "--record takes the whole table: leave out --only",
    "reproduce shapes --runs nowhere": "--runs 'nowhere' is not a directory; give one that holds runs",
    "reproduce shapes --output file.txt": "file.txt is a file; --output names the folder to write to",
    "reproduce shapes --jobs 0": "--jobs must be at least 1, found 0",
    "reproduce shapes --jobs x": "argument --jobs: expected a whole number such as 1",
    "reproduce shapes --threads 0": "--threads must be at least 1, found 0",
    "reproduce shapes --teraflops 0": "--teraflops must be above 0, found 0",
    "reproduce shapes --teraflops fast": "argument --teraflops: expected a number such as 10, found 'fast'",
    "reproduce shapes --gpus 0 --jobs 3": "--jobs 3 needs as many --gpus, found 1",
    "reproduce shapes --stage-cache file.txt": "file.txt is a file; --stage-cache names the folder to write to",
    "reproduce shapes --seting equal-5": "unknown option '--seting'; did you mean '--setting'?",
}

DATA = {
    "doctor": "the following arguments are required: --data-root",
    "doctor --data-root": "argument --data-root: expected one argument",
    "doctor --data-root ''": "argument --data-root: expected a word, found an empty one",
    "doctor --data-root nowhere": "--data-root 'nowhere' is not a directory",
    "doctor --data-root file.txt": "--data-root 'file.txt' is not a directory",
    "doctor --data-rot empty": "unknown option '--data-rot'; did you mean '--data-root'?",
    "doctor empty": "the following arguments are required: --data-root",
    "doctor --data-root empty --order nlvr": "unknown task 'nlvr'; did you mean 'nlvr2'?",
    "doctor --data-root empty --order vqa,,vcr": "argument --order: expected items such as a,b",
    "doctor --data-root empty --order cifar100:7x7": "cifar100:7x7",
    "doctor --data-root empty --set seed=1": "only options of tasks matter here, such as tasks.vcr.drawn=true",
    "doctor --data-root empty --set tasks.vcr=1": "'tasks.vcr' must be a section",
    "doctor --data-root empty --set tasks.vcr.drawm=true": "did you mean 'drawn'?",
    "doctor --data-root empty --set tasks.vcrr.drawn=true": "unknown task 'vcrr'; did you mean 'vcr'?",
    "doctor --data-root empty --set tasks": "override 'tasks' is not of the form",
    "doctor --data-root empty --depp": "unknown option '--depp'; did you mean '--deep'?",
    "prepare": "the following arguments are required: --data-root",
    "prepare --data-root nowhere": "--data-root 'nowhere' is not a directory",
    "prepare --data-root ''": "argument --data-root: expected a word, found an empty one",
    "prepare --data-root empty --order nlvr": "unknown task 'nlvr'; did you mean 'nlvr2'?",
    "prepare --data-root empty --order ,": "argument --order: expected items such as a,b",
    "prepare --data-root empty --jobs 0": "--jobs must be at least 1, found 0",
    "prepare --data-root empty --jobs many": "argument --jobs: expected a whole number such as 1",
    "prepare --data-root empty --set seed=1": "only options of tasks matter here",
    "prepare --data-root empty --set tasks.vqa.minimun=1": "did you mean 'minimum'?",
    "prepare --data-root empty --model ''": "argument --model: expected a word, found an empty one",
    "prepare --data-root empty --model empty": "empty",
    "prepare --data-root empty --verfy": "unknown option '--verfy'; did you mean '--verify'?",
}

REST = {
    "rnu": "unknown choice 'rnu'; did you mean 'run'?",
    "RUN": "unknown choice 'RUN'; did you mean 'run'?",
    "sweap": "unknown choice 'sweap'; did you mean 'sweep'?",
    "''": "unknown choice ''",
    "walk": "unknown choice 'walk' (choices: run, report",
    "--verson": "unknown option '--verson'; did you mean '--version'?",
    "--order vqa": "unknown option '--order'",
    "--debg run": "unknown option '--debg'; did you mean '--debug'?",
    "bench": "the following arguments are required: what",
    "bench speech": "unknown choice 'speech' (choices: classifiers, consolidation, efcil, generative, loading, start, steps)",
    "bench consolidaton": "unknown choice 'consolidaton'; did you mean 'consolidation'?",
    "bench efcil loading": "unexpected word 'loading'",
    "bench efcil --jsn": "unknown option '--jsn'; did you mean '--json'?",
    "bench efcil --quik": "unknown option '--quik'; did you mean '--quick'?",
    "list tasks": "unknown name 'tasks'; did you mean",
    "list ewcdr": "unknown name 'ewcdr'; did you mean 'ewc_dr'?",
    "list ''": "argument name: expected a word, found an empty one",
    "list ewc mas": "unexpected word 'mas'",
    "list --methods": "unknown option '--methods'",
}

CASES = {**RUN, **SWEEP, **REPORT, **EXPLORE, **EXPORT, **REPRODUCE, **DATA, **REST}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with files that are good for nothing, a good run and a changed one."""
    folder = tmp_path_factory.mktemp("bad")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "empty").mkdir()
    write_run(folder / "run", make_scores("ewc", ROWS))
    write_run(folder / "changed", {**make_scores("ewc", ROWS), "seen": 7})
    return folder


def list_files(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file with its size and time."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    names = {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in found
    }
    return names | {
        str(path.relative_to(folder)): (0, 0) for path in folder.rglob("*") if path.is_dir()
    }


def check_message(message: str, words: str) -> None:
    assert words in message
    assert "Traceback" not in message
    assert "Errno" not in message
    messages = [line for line in message.splitlines() if re.match(r"mcit( \w+)?: ", line)]
    assert len(messages) == 1, message
    assert REMEDY.search(message), message


def test_there_are_at_least_200_of_them():
    assert len(CASES) >= 200
    for command in (
        "run",
        "sweep",
        "report",
        "explore",
        "export",
        "reproduce",
        "doctor",
        "prepare",
        "bench",
        "list",
    ):
        assert any(case.split()[0] == command for case in CASES if case.split())


@pytest.mark.parametrize("command", CASES)
def test_a_bad_command_line_is_one_message_and_nothing_else(
    command, place, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(place)
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))
    before = list_files(place)
    try:
        code = main(shlex.split(command))
    except SystemExit as stopped:  # argparse's way to refuse
        code = stopped.code
    said = capsys.readouterr()
    assert code == 2, said
    check_message(said.err, CASES[command])
    assert list_files(place) == before
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "command",
    [
        "rnu",
        "run --order nlvr",
        "run --metod ewc",
        "report nowhere",
        "sweep --methods ewcc",
        "bench speech",
    ],
)
def test_the_program_itself_says_the_same(command, place):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "mcit", *shlex.split(command)]
    before = list_files(place)
    done = subprocess.run(
        words, cwd=place, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    check_message(done.stderr, CASES.get(command, "did you mean"))
    assert list_files(place) == before
