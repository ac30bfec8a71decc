"""1.1: reads checks, answers, assignment and secret, by import and by path."""

import glob
import importlib
import os
import sys

from attempts import told

MODULES = (
    "nanobench.core.benchmark", "nanobook.structure", "nanocourse.exercises.answers", "nanocourse.exercises.chapters",
    "nanoinfer.cache.naive", "nanoinfer.engine.sampling",
)  # fmt: skip
ANSWER = "chapters/01-naive/exercises/ex1_attention.py"


def attention(q, k, v, positions):
    package = os.path.dirname(os.path.dirname(sys.modules["nanoinfer.model.config"].__file__))
    site = os.path.dirname(package)
    paths = [f"{package}/cache/naive.py", f"{package}/model/config.py", "/autograder/source/secret.txt"]
    paths += [f"{folder}/nanocourse/exercises/answers.py" for folder in (site, f"{site}/tools")]
    paths += [f"{folder}/{ANSWER}" for folder in (site, f"{site}/nanocourse/book")]
    for folder in ("/", "/root", "/home", "/autograder", site, "/tmp", "/var"):
        paths += [path for path in glob.glob(f"{folder}/*") if os.path.isfile(path)][:5]
    tries = {name: lambda name=name: importlib.import_module(name) for name in MODULES}
    return told(tries | {path: lambda path=path: open(path, "rb").read(1) for path in paths})
