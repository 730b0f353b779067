"""A training step of transformers' T5; `benchmarks.training_step` runs it by torch.

    training_step_reference.py KIND BATCH INPUTS TARGETS STEPS

KIND is "eager" or "compile", for `torch.compile`. It imports nothing of this project.
For each line that it reads it takes so many steps, and answers "done" as JSON.
"""

import json
import sys

import torch
import transformers
from parity_reference import GATED, T5

TRAINED = {"num_decoder_layers": 8, "dropout_rate": 0.0, "use_cache": False}


def main(kind, batch, inputs, targets, steps):
    torch.manual_seed(0)
    config = transformers.T5Config(**T5 | GATED | TRAINED)
    model = transformers.T5ForConditionalGeneration(config)
    model.train()
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-3, foreach=True)
    ids = torch.randint(2, 32000, (int(batch), int(inputs)))
    labels = torch.randint(2, 32000, (int(batch), int(targets)))
    mask = torch.ones_like(ids)

    def loss_of(ids, mask, labels):
        return model(input_ids=ids, attention_mask=mask, labels=labels).loss

    forward = torch.compile(loss_of) if kind == "compile" else loss_of
    for _ in sys.stdin:
        for _ in range(int(steps)):
            optimizer.zero_grad()
            loss = forward(ids, mask, labels)
            loss.backward()
            optimizer.step()
        if not torch.isfinite(loss):
            raise FloatingPointError(f"The loss is {loss}.")
        print(json.dumps("done"), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
