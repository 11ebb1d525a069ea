"""Small models and data that the tests of others' tools share."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def llama(seed: int = 0, **changes):
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                                           "num_key_value_heads": 2, "max_position_embeddings": 64, **changes}))


class Sentences(torch.utils.data.Dataset):
    """Rows of 8 tokens, each its own label."""

    def __init__(self, count: int = 16):
        self.rows = torch.randint(0, 64, (count, 8), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


def assert_equal_states(one, other, tolerance: float = 1e-5):
    """Two modules have the same values, wherever they lie."""
    mine, its = one.state_dict(), other.state_dict()
    assert mine.keys() == its.keys()
    for name in mine:
        torch.testing.assert_close(mine[name].cpu(), its[name].cpu(), rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}")
