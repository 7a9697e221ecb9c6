"""The models of the comparison: what PyTorch trains, and what is exported for halfnote.

Each is a module that takes the batch and gives the loss, its weights drawn from a fixed seed, so
that both sides start from the same ones; dropout is off, but for models that are named after it.
"""
from dataclasses import dataclass
from typing import Callable

import torch
from torch import nn
from torch.nn.functional import cross_entropy

SEED = 0
WEIGHT_DECAY = 0.01


class WithLoss(nn.Module):
    """A model and the mean cross entropy of its logits."""

    def __init__(self, model, logits):
        super().__init__()
        self.model = model
        self.logits = logits

    def forward(self, x, labels):
        out = self.logits(self.model, x)
        return cross_entropy(out.reshape(-1, out.shape[-1]), labels.reshape(-1))


def call(model, x):
    return model(x)


def cifar_cnn(attention):
    return WithLoss(nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 8 * 8, 128), nn.ReLU(), nn.Linear(128, 10)), call)


def mlp(attention):
    return WithLoss(nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(),
                                  nn.Linear(128, 10)), call)


def lenet(attention):
    return WithLoss(nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84),
        nn.ReLU(), nn.Linear(84, 10)), call)


class Bottleneck(nn.Module):
    def __init__(self, channels):
        super().__init__()
        inner = channels // 2
        self.branch = nn.Sequential(
            nn.Conv2d(channels, inner, 1), nn.ReLU(), nn.Conv2d(inner, inner, 3, padding=1),
            nn.ReLU(), nn.Conv2d(inner, channels, 1))

    def forward(self, x):
        return torch.relu(x + self.branch(x))


def small_resnet(attention):
    return WithLoss(nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), Bottleneck(32), Bottleneck(32), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), Bottleneck(64), Bottleneck(64), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(64, 10)), call)


def inverted_residual(inputs, outputs, stride):
    wide = 4 * inputs
    return nn.Sequential(
        nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
        nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide),
        nn.ReLU6(), nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs))


def small_mobilenet(attention):
    return WithLoss(nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), inverted_residual(16, 24, 2), inverted_residual(24, 24, 1),
        inverted_residual(24, 40, 2), inverted_residual(40, 40, 1), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(40, 10)), call)


def small_transformer(attention):
    layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, activation="gelu", batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return WithLoss(nn.Sequential(nn.Embedding(1000, 64), encoder, nn.Linear(64, 1000)), call)


def resnet50(attention):
    import torchvision
    return WithLoss(torchvision.models.resnet50(), call)


def bert(attention, dropout=0.0):
    from transformers import BertConfig, BertForMaskedLM
    config = BertConfig(attn_implementation=attention, hidden_dropout_prob=dropout,
                        attention_probs_dropout_prob=dropout)
    return WithLoss(BertForMaskedLM(config), lambda model, ids: model(input_ids=ids).logits)


def gpt2(attention, dropout=0.0):
    from transformers import GPT2Config, GPT2LMHeadModel
    config = GPT2Config(attn_implementation=attention, resid_pdrop=dropout, embd_pdrop=dropout,
                        attn_pdrop=dropout, use_cache=False)
    return WithLoss(GPT2LMHeadModel(config), gpt2_logits)


def gpt2_logits(model, ids):
    if model.config._attn_implementation != "eager":
        return model(input_ids=ids).logits
    # A mask of our own: that of transformers is traced into ops that the legacy exporter lacks.
    length = ids.shape[1]
    mask = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)[None, None]
    position = torch.arange(length)[None]
    return model(input_ids=ids, attention_mask=mask, position_ids=position).logits


def images(batch, size, classes, channels=3):
    return torch.randn(batch, channels, size, size), torch.randint(0, classes, (batch,))


def rows(batch, size, classes):
    return torch.randn(batch, size), torch.randint(0, classes, (batch,))


def tokens(batch, length, vocabulary):
    ids = torch.randint(0, vocabulary, (batch, length))
    return ids, torch.randint(0, vocabulary, (batch, length))


@dataclass
class Model:
    make: Callable          # (attention) -> module of (x, labels)
    batch: Callable         # () -> (x, labels)
    optimizer: str          # adamw or momentum: the same on both sides
    lr: float
    channels_last: bool = False
    # PyTorch differs from itself by 3e-3 in the second loss of ResNet-50 (plain against
    # channels_last, fp32): its later losses cannot be held to rounding.
    later_losses: float = 0


MODELS = {
    "cifar_cnn": Model(cifar_cnn, lambda: images(128, 32, 10), "adamw", 1e-3, True),
    "resnet50": Model(resnet50, lambda: images(32, 224, 1000), "momentum", 1e-2, True,
                      2e-2),
    "bert": Model(bert, lambda: tokens(8, 128, 30522), "adamw", 1e-4),
    "gpt2": Model(gpt2, lambda: tokens(2, 256, 50257), "adamw", 1e-4),
    # As they are trained from their papers on: 0.1 of residuals, embeddings and probabilities.
    "bert_dropout": Model(lambda attention: bert(attention, 0.1), lambda: tokens(8, 128, 30522),
                          "adamw", 1e-4),
    "gpt2_dropout": Model(lambda attention: gpt2(attention, 0.1), lambda: tokens(2, 256, 50257),
                          "adamw", 1e-4),
    # What a step costs beside its arithmetic.
    "mlp": Model(mlp, lambda: rows(64, 784, 10), "adamw", 1e-3),
    "lenet": Model(lenet, lambda: images(64, 28, 10, 1), "adamw", 1e-3, True),
    "small_resnet": Model(small_resnet, lambda: images(16, 32, 10), "momentum", 1e-2, True),
    "small_mobilenet": Model(small_mobilenet, lambda: images(16, 64, 10), "adamw", 1e-3, True),
    "small_transformer": Model(small_transformer, lambda: tokens(16, 32, 1000), "adamw", 1e-4),
}


def make(name, attention="sdpa"):
    """The module in training mode and its batch, from the seed."""
    torch.manual_seed(SEED)
    module = MODELS[name].make(attention).train()
    torch.manual_seed(SEED + 1)
    return module, MODELS[name].batch()
