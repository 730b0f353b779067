"""transformers' answers to lines; `benchmarks.lines` runs it by a Python that has it.

    lines_reference.py FOLDER TOKENS

It imports nothing of this project. For each batch size that it reads it answers all
rows of FOLDER/ids.json with so many tokens, and says "done".
"""

import json
import os
import sys

import torch
from transformers import T5ForConditionalGeneration


def answer(model, rows, batch, tokens):
    rows = sorted(rows, key=len)
    for start in range(0, len(rows), batch):
        some = rows[start : start + batch]
        longest = len(some[-1])
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in some])
        model.generate(
            ids,
            attention_mask=(ids != 0).long(),
            do_sample=False,
            num_beams=1,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
        )


def main(folder, tokens):
    model = T5ForConditionalGeneration.from_pretrained(folder).eval()
    with open(os.path.join(folder, "ids.json")) as file:
        rows = json.load(file)
    for line in sys.stdin:
        with torch.no_grad():
            answer(model, rows, int(line), int(tokens))
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
