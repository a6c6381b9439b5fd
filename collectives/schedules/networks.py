"""Networks as lists of layers, in the order of the forward pass: parameters, and operations for one sample.

All numbers follow from the sizes that the papers give; where an implementation settles what a paper leaves open, the
note of the network says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["NETWORKS", "Layer", "Network"]


@dataclass(frozen=True, slots=True)
class Layer:
    """Parameters that get their gradients at the same time.

    Attributes
    ----------
    name : str
    n_parameters : int
    forward_flops : float
        Floating-point operations of the forward pass for one sample: two for each multiplication and addition.
    """

    name: str
    n_parameters: int
    forward_flops: float


@dataclass(frozen=True, slots=True)
class Network:
    """A network.

    Attributes
    ----------
    layers : tuple of Layer
    sample : str
        What a sample is.
    source : str
        Where its sizes are from.
    """

    layers: tuple[Layer, ...]
    sample: str
    source: str

    @property
    def n_parameters(self) -> int:
        """Of all layers."""
        return sum(layer.n_parameters for layer in self.layers)

    @property
    def forward_flops(self) -> float:
        """Of all layers, for one sample."""
        return sum(layer.forward_flops for layer in self.layers)


def _resnet(blocks: tuple[int, ...]) -> Network:
    layers: list[Layer] = []

    def convolution(name: str, into: int, out: int, kernel: int, side: int) -> None:
        weights = into * out * kernel * kernel
        layers.append(Layer(name, weights + 2 * out, 2.0 * weights * side * side))  # with its batch normalisation

    convolution("conv1", 3, 64, 7, 112)
    width, side = 64, 56
    for stage, count in enumerate(blocks):
        inner = 64 << stage
        for block in range(count):
            where = f"stage{stage + 1}.{block}"
            # The first block of a later stage halves the picture in its 3x3 convolution.
            before, after = (side, side // 2) if stage and not block else (side, side)
            convolution(f"{where}.conv1", width, inner, 1, before)
            convolution(f"{where}.conv2", inner, inner, 3, after)
            convolution(f"{where}.conv3", inner, 4 * inner, 1, after)
            if not block:
                convolution(f"{where}.shortcut", width, 4 * inner, 1, after)
            width, side = 4 * inner, after
    layers.append(Layer("classifier", width * 1000 + 1000, 2.0 * width * 1000))
    source = "He et al. 2016, Deep residual learning, table 1; batch normalisation and stride as in torchvision (V1.5)"
    return Network(tuple(layers), "image of 224 x 224", source)


def _attention(width: int, tokens: int) -> tuple[int, float]:
    """Return parameters and operations for each token: four projections with biases, scores and weighted sums."""
    return 4 * (width * width + width), 2.0 * 4 * width * width + 4.0 * tokens * width


def _feed_forward(width: int, inner: int) -> tuple[int, float]:
    return 2 * width * inner + inner + width, 2.0 * 2 * width * inner


def _transformer_big() -> Network:
    width, inner, depth, vocabulary, tokens = 1024, 4096, 6, 37000, 25
    attention, attention_flops = _attention(width, tokens)
    feed_forward, feed_forward_flops = _feed_forward(width, inner)
    layers = [Layer("embedding", vocabulary * width, 0.0)]  # shared by both sides and the classifier
    for index in range(depth):
        flops = attention_flops + feed_forward_flops
        layers.append(Layer(f"encoder{index}", attention + feed_forward + 4 * width, tokens * flops))
    for index in range(depth):
        flops = 2 * attention_flops + feed_forward_flops
        layers.append(Layer(f"decoder{index}", 2 * attention + feed_forward + 6 * width, tokens * flops))
    layers.append(Layer("classifier", 0, 2.0 * tokens * width * vocabulary))
    source = "Vaswani et al. 2017, Attention is all you need, table 3, big; one vocabulary of 37000 for both languages"
    return Network(tuple(layers), f"pair of sentences of {tokens} tokens (assumed)", source)


def _bert_large() -> Network:
    width, inner, depth, vocabulary, positions, tokens, predicted = 1024, 4096, 24, 30522, 512, 128, 20
    attention, attention_flops = _attention(width, tokens)
    feed_forward, feed_forward_flops = _feed_forward(width, inner)
    layers = [Layer("embedding", (vocabulary + positions + 2) * width + 2 * width, 0.0)]
    flops = tokens * (attention_flops + feed_forward_flops)
    layers += [Layer(f"layer{index}", attention + feed_forward + 4 * width, flops) for index in range(depth)]
    layers.append(Layer("pooler", width * width + width, 2.0 * width * width))
    heads = width * width + 3 * width + vocabulary + 2 * width + 2
    layers.append(Layer("heads", heads, predicted * (2.0 * width * width + 2.0 * width * vocabulary)))
    source = "Devlin et al. 2019, BERT, section 3, large; heads of pre-training, classifier tied to the embedding"
    return Network(tuple(layers), f"sequence of {tokens} tokens, {predicted} of them predicted (assumed)", source)


def _lstm(into: int, width: int) -> int:
    return 4 * ((into + width) * width + 2 * width)


def _gnmt() -> Network:
    width, vocabulary, tokens = 1024, 32320, 25

    def lstm(name: str, into: int, directions: int = 1) -> Layer:
        n_parameters = directions * _lstm(into, width)
        return Layer(name, n_parameters, 2.0 * tokens * n_parameters)

    layers = [Layer("embedding", vocabulary * width, 0.0)]  # shared by both sides
    layers += [lstm("encoder0", width, 2), lstm("encoder1", 2 * width)]
    layers += [lstm("encoder2", width), lstm("encoder3", width)]
    layers.append(lstm("decoder0", width))
    attending = 2.0 * tokens * (2 * width * width + 2 * tokens * width)
    layers.append(Layer("attention", 2 * width * width + 2 * width, attending))
    layers += [lstm(f"decoder{index}", 2 * width) for index in (1, 2, 3)]
    layers.append(Layer("classifier", width * vocabulary + vocabulary, 2.0 * tokens * width * vocabulary))
    source = "Wu et al. 2016, GNMT, with the four layers a side, 1024 units and 32320 word pieces of MLPerf (assumed)"
    return Network(tuple(layers), f"pair of sentences of {tokens} tokens (assumed)", source)


def _ncf() -> Network:
    users, items, factors, sizes = 138493, 26744, 64, (256, 256, 128, 64)
    layers = [
        Layer("embedding.factors", (users + items) * factors, 2.0 * factors),
        Layer("embedding.layers", (users + items) * sizes[0] // 2, 0.0),
    ]
    for index, (into, out) in enumerate(pairwise(sizes)):
        layers.append(Layer(f"layer{index}", into * out + out, 2.0 * into * out))
    layers.append(Layer("predictor", factors + sizes[-1] + 1, 2.0 * (factors + sizes[-1])))
    source = (
        "He et al. 2017, Neural collaborative filtering, NeuMF; MovieLens-20M, 64 factors and layers 256-256-128-64 as "
        "in MLPerf v0.5 (assumed)"
    )
    return Network(tuple(layers), "pair of a user and a film", source)


NETWORKS: dict[str, Callable[[], Network]] = {
    "resnet50": lambda: _resnet((3, 4, 6, 3)),
    "resnet101": lambda: _resnet((3, 4, 23, 3)),
    "transformer-big": _transformer_big,
    "gnmt": _gnmt,
    "ncf": _ncf,
    "bert-large": _bert_large,
}
"""By the names of workloads."""
