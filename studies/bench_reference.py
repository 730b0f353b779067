"""Masked language modelling by transformers' BERT, of the size of `studies.bench`.

    PYTHON studies/bench_reference.py FOLDER [STEPS] [SEED]

It shows what a model of the same size learns in another library, from the same books,
under the same schedule: rows of 64 bytes, of which 15% are predicted, AdamW, and a peak
rate of 3e-3. PYTHON has torch and transformers; this project need not be installed.
FOLDER holds *.txt or *.txt.gz. The loss is that of 1,024 other rows.
"""

import gzip
import pathlib
import sys

import numpy as np
import torch
import transformers

LENGTH, ROWS, HELD_OUT, SHOWN = 64, 8, 1024, 5
BYTES, MASK = 3, 259  # ids: three special ones, 256 bytes, then extra ones
SIZE = {
    "vocab_size": 262,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": LENGTH,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def read(folder):
    """Rows of ids, int64 `[number, LENGTH]`."""
    texts = [
        gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
        for path in sorted(pathlib.Path(folder).glob("*.txt*"))
    ]
    ids = np.frombuffer(b"".join(texts), np.uint8).astype(np.int64) + BYTES
    return ids[: len(ids) // LENGTH * LENGTH].reshape(-1, LENGTH)


def mask(rows, rng):
    """Inputs and labels as in BERT, section 3.1: 80% masks, 10% other bytes."""
    chosen, kind = rng.random(rows.shape) < 0.15, rng.random(rows.shape)
    other = rng.integers(BYTES, MASK, rows.shape)
    inputs = np.where(kind < 0.8, MASK, np.where(kind < 0.9, other, rows))
    inputs = np.where(chosen, inputs, rows)
    return torch.tensor(inputs), torch.tensor(np.where(chosen, rows, -100))


def main(folder, steps="1000", seed="0"):
    steps, rng = int(steps), np.random.default_rng(int(seed))
    torch.manual_seed(int(seed))
    torch.set_num_threads(1)
    rows = read(folder)
    rng.shuffle(rows)
    held_out, rows = mask(rows[:HELD_OUT], rng), rows[HELD_OUT:]
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SIZE))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-3, eps=1e-6, weight_decay=0.01
    )
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, steps // 10, steps
    )

    def loss_of(batch):
        inputs, labels = batch
        return model(input_ids=inputs, labels=labels).loss

    for step in range(1, steps + 1):
        loss = loss_of(mask(rows[rng.integers(0, len(rows), ROWS)], rng))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % (steps // SHOWN) == 0:
            with torch.no_grad():
                print(f"{step} steps: {loss_of(held_out):.3f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
