"""Converts YAML to JSON. A request is a length in four bytes and a document, and its response is a line of JSON."""

import json
import struct
import sys

import yaml


class Loader(yaml.BaseLoader):
    """Returns all scalars as text."""


while True:
    head = sys.stdin.buffer.read(4)
    if len(head) < 4:
        break
    text = sys.stdin.buffer.read(struct.unpack(">I", head)[0]).decode()
    try:
        documents = list(yaml.load_all(text, Loader))
        answer = json.dumps({"document": documents[0] if documents else None})
    except Exception as error:
        answer = json.dumps({"error": f"{type(error).__name__}: {error}"})
    print(answer, flush=True)
