"""BERT's protocol for SQuAD in plain Python, written from its description."""

import collections
import re
import string


def doc_spans(number, room, stride):
    """The windows of a context of `number` tokens, as (start, length)."""
    spans, start = [], 0
    while True:
        length = min(number - start, room)
        spans.append((start, length))
        if start + length >= number:
            return spans
        start += min(length, stride)


def has_maximum_context(spans, index, position):
    best_score, best_index = -1, None
    for i, (start, length) in enumerate(spans):
        end = start + length - 1
        if start <= position <= end:
            score = min(position - start, end - position) + 0.01 * length
            if score > best_score + 1e-9:
                best_score, best_index = score, i
    return best_index == index


def answer(windows, before, spans, num_best, max_length):
    """The best span of the context, first and last token, and null minus its score.

    `windows`: of each the logits of starts and ends; `before`: tokens of [CLS],
    question and [SEP].
    """
    best, best_span, null = -float("inf"), None, float("inf")
    for index, (starts, ends) in enumerate(windows):
        null = min(null, starts[0] + ends[0])
        first, length = spans[index]
        top_starts, top_ends = (
            sorted(range(len(x)), key=lambda i: -x[i])[:num_best]
            for x in (starts, ends)
        )
        for s in top_starts:
            for e in top_ends:
                if not (
                    before <= s < before + length and before <= e < before + length
                ):
                    continue
                if not has_maximum_context(spans, index, first + s - before):
                    continue
                if e < s or e - s + 1 > max_length:
                    continue
                if starts[s] + ends[e] > best:
                    best = starts[s] + ends[e]
                    best_span = first + s - before, first + e - before
    return best_span, null - best


def normalize(text):
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def f1(text, gold):
    text, gold = normalize(text).split(), normalize(gold).split()
    same = sum((collections.Counter(text) & collections.Counter(gold)).values())
    if not text or not gold or not same:
        return float(text == gold)
    precision, recall = same / len(text), same / len(gold)
    return 2 * precision * recall / (precision + recall)


def scores(questions, threshold):
    """em, f1 and, of SQuAD 2.0, best_f1 with its threshold.

    `questions`: of each the text, null minus best, and the right answers.
    """
    n = len(questions) / 100

    def best_f1(text, golds):
        return max(f1(text, gold) for gold in golds or [""])

    given = [("" if d > threshold else text, golds) for text, d, golds in questions]
    found = {
        "em": sum(
            any(normalize(text) == normalize(g) for g in golds or [""])
            for text, golds in given
        )
        / n,
        "f1": sum(best_f1(*x) for x in given) / n,
    }
    if all(golds for _, _, golds in questions):
        return found
    # Every threshold that makes a difference, tried one after the other.
    tried = {}
    for at in [-float("inf"), *(d for _, d, _ in questions)]:
        answers = (("" if d > at else text, golds) for text, d, golds in questions)
        tried[at] = sum(best_f1(*x) for x in answers) / n
    return {**found, "best_f1": max(tried.values())}


def official(questions, bound, version):
    """em and f1 by the algorithm of evaluate-v1.1.py or evaluate-v2.0.py."""

    def f1_of(text, gold):
        text, gold = normalize(text).split(), normalize(gold).split()
        if version == 2 and not (text and gold):
            return float(text == gold)
        same = sum((collections.Counter(text) & collections.Counter(gold)).values())
        return 2 * same / (len(text) + len(gold)) if same else 0.0

    totals = {"em": 0.0, "f1": 0.0}
    for text, no_answer, golds in questions:
        text = "" if no_answer > bound else text
        if version == 2:
            golds = [gold for gold in golds if normalize(gold)] or [""]
        totals["em"] += max(normalize(text) == normalize(gold) for gold in golds)
        totals["f1"] += max(f1_of(text, gold) for gold in golds)
    return {name: 100 * total / len(questions) for name, total in totals.items()}


def official_best_f1(questions):
    """find_best_thresh of evaluate-v2.0.py: the best F1 and its threshold."""
    score = best = sum(not golds for _, _, golds in questions)
    bound = 0.0
    for text, no_answer, golds in sorted(questions, key=lambda x: x[1]):
        raw = official([(text, 0, golds)], 1, 2)["f1"] / 100
        score += raw if golds else -1 if text else 0
        if score > best:
            best, bound = score, no_answer
    return 100 * best / len(questions), bound
