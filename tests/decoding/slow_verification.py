"""Verification as plain loops over Python numbers, one sequence at a time: the reference for the tests."""

from itertools import pairwise

import numpy as np

from lantern_jax.decoding.acceptance import Rule, as_rule


def rule_of(name: str, k: int, strength: float) -> Rule:
    """Makes the rule that ``borrowed`` computes."""
    number = {"lantern": "delta", "lantern++": "lam"}.get(name)
    return as_rule(f"{name}:k={k},{number}={strength}" if number else name)


def borrowed(rule_name, k, strength, p, x, table):
    """Returns A(x) as a list, and its mass."""
    bound = {"strict": 0.0, "lantern": strength, "lantern++": (strength - 1) * p[x]}[rule_name]
    inside, total = [], 0.0
    for code in table[x][:k] if rule_name != "strict" else []:
        if code < 0 or total + p[code] > bound:
            break
        inside.append(int(code))
        total += p[code]
    return (inside, total) if total > 0 else ([], 0.0)


def children_of(tree, node):
    return [int(child) for child in tree.children[node] if child >= 0]


def verify_gumbel(tree, tokens, log_probs, noise, rule, table, codes, path, max_count):
    """Returns (path, bonus, substituted, distance); rule = (name, k, strength); noise [L, V]."""
    scores = [log_probs[node] + noise[tree.depth[node]] for node in range(tree.num_nodes)]
    wanted = [int(np.argmax(score)) for score in scores]

    def is_followed(node):
        """Tells whether the target's own token is guessed after a node, behind tokens without a choice if need be."""
        right = [child for child in children_of(tree, node) if tokens[child] == wanted[node]]
        return any(np.isfinite(log_probs[node]).sum() > 1 or is_followed(child) for child in right)

    def accepts(parent, child):
        x = tokens[child]
        if x == wanted[parent]:
            return True
        if path == "followed" and not is_followed(child):
            return False
        inside, mass = borrowed(*rule, np.exp(log_probs[parent]), x, table)
        if mass == 0:
            return False
        score = scores[parent].copy()
        score[x] = np.log(np.exp(log_probs[parent][x]) + mass) + noise[tree.depth[parent]][x]
        score[inside] = -np.inf
        return int(np.argmax(score)) == x

    def leaves(node, walked):
        """Returns the maximal accepted paths, depth first."""
        below = [child for child in children_of(tree, node) if accepts(node, child)]
        return [path for child in below for path in leaves(child, [*walked, child])] or [walked]

    walked = max(leaves(0, [0]), key=len)[: max_count + 1]
    steps = list(pairwise(walked))
    substituted = [tokens[child] != wanted[parent] for parent, child in steps]
    distance = [
        float(np.linalg.norm(codes[tokens[child]] - codes[wanted[parent]])) for parent, child in steps
    ]
    return walked, wanted[walked[-1]], substituted, distance


def positive(values):
    left = np.maximum(values, 0)
    return left / left.sum() if left.sum() > 0 else None


def verify_rejection(tree, tokens, p_rows, q_rows, uniforms, noise, rule, table, codes, max_count):
    """Verifies with the exact residual; q_rows maps internal nodes to q, None for point masses; noise [V]."""
    walked, substituted, distance, p = [0], [], [], p_rows[0].copy()

    def draw(weights):
        with np.errstate(divide="ignore"):
            return int(np.argmax(np.log(weights) + noise))

    while len(walked) <= max_count:
        node = walked[-1]
        q = None if q_rows is None else q_rows.get(node)
        for child in children_of(tree, node):
            x = tokens[child]
            if q_rows is None:
                q = np.eye(p.size)[x]
            if q[x] == 0:
                continue
            inside, mass = borrowed(*rule, p, x, table)
            if uniforms[child] * q[x] < p[x] + mass:
                strict = positive(p - q)
                wanted = draw(p if strict is None else strict)
                substituted.append(bool(uniforms[child] * q[x] >= p[x]))
                distance.append(float(np.linalg.norm(codes[x] - codes[wanted])))
                walked.append(child)
                p = p_rows[child].copy()
                break
            q_left = q.copy()
            q_left[x] = 0
            moved = p.copy()
            moved[inside] = 0
            moved[x] += mass
            left = positive(moved - q)
            p = moved if left is None else left
            q = q_left / q_left.sum() if q_left.sum() > 0 else q_left
        else:
            break
    return walked, draw(p), substituted, distance
