"""Mistakes in models, and in what their optimizers train."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

from tests.support.pa_preflight.data import lines, pictures, points, texts, walks
from tests.support.pa_preflight.scripts import Apply, Planting, Script, conv_net, perceptron, script

planted = Planting()


@planted("inputs-do-not-matter")
def multiplied_by_zero() -> Script:
    """What the first layer returns is masked by zeros."""
    model = nn.Sequential(nn.Linear(8, 32), Apply(lambda hidden: hidden * torch.zeros(32)), nn.Linear(32, 4))
    return script(model, nn.CrossEntropyLoss(), points())


@planted("inputs-do-not-matter")
def dead_activations() -> Script:
    """The bias of the hidden layer is so low that its ReLU returns zeros for all samples."""
    hidden = nn.Linear(6, 32)
    nn.init.constant_(hidden.bias, -100.0)
    return script(nn.Sequential(hidden, nn.ReLU(), nn.Linear(32, 1)), nn.MSELoss(), lines())


@planted("samples-mix")
def attention_over_the_batch() -> Script:
    """The softmax of the attention weights is over the batch instead of the features."""

    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = nn.Linear(8, 8)
            self.head = perceptron(8, 4)

        @override
        def forward(self, inputs: Tensor) -> Tensor:
            weights = functional.softmax(self.scores(inputs), dim=0)
            logits: Tensor = self.head(inputs * weights * len(inputs))
            return logits

    return script(Attending(), nn.CrossEntropyLoss(), points())


@planted("samples-mix")
def view_instead_of_a_transposition() -> Script:
    """Rows are read as if the features came first, which mixes batch and features."""
    mixed = Apply(lambda inputs: inputs.reshape(inputs.shape[1], inputs.shape[0]).t())
    return script(nn.Sequential(mixed, perceptron(8, 4)), nn.CrossEntropyLoss(), points())


@planted("samples-mix")
def standardised_over_the_batch() -> Script:
    """The model standardises its inputs by the batch instead of by the training set."""
    standardised = Apply(lambda inputs: (inputs - inputs.mean(dim=0)) / (inputs.std(dim=0) + 1e-5))
    return script(nn.Sequential(standardised, perceptron(8, 4)), nn.CrossEntropyLoss(), points())


@planted("samples-mix")
def batch_taken_for_the_sequence() -> Script:
    """A transformer layer without ``batch_first`` attends from sample to sample."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(20, 16)
            self.layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, dropout=0.0)
            self.head = nn.Linear(16, 3)

        @override
        def forward(self, tokens: Tensor) -> Tensor:
            logits: Tensor = self.head(self.layer(self.embedding(tokens)).mean(dim=1))
            return logits

    return script(Encoder(), nn.CrossEntropyLoss(), texts())


@planted("samples-mix")
def recurrence_over_the_batch() -> Script:
    """A GRU without ``batch_first`` runs over the samples of the batch."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrence = nn.GRU(4, 16)
            self.head = nn.Linear(16, 1)

        @override
        def forward(self, inputs: Tensor) -> Tensor:
            states, _ = self.recurrence(inputs)
            outputs: Tensor = self.head(states.mean(dim=1))
            return outputs

    return script(Recurrent(), nn.MSELoss(), walks())


@planted("parameters-without-gradient")
def layer_that_is_not_called() -> Script:
    """``forward`` leaves out a layer."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 32)
            self.second = nn.Linear(32, 32)
            self.head = nn.Linear(32, 4)

        @override
        def forward(self, inputs: Tensor) -> Tensor:
            logits: Tensor = self.head(self.first(inputs).relu())
            return logits

    return script(Network(), nn.CrossEntropyLoss(), points())


@planted("parameters-without-gradient")
def last_layer_of_a_list_left_out() -> Script:
    """A loop over a list of layers ends too early."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
            self.head = nn.Linear(8, 4)

        @override
        def forward(self, inputs: Tensor) -> Tensor:
            for layer in self.layers[:-1]:
                inputs = layer(inputs).relu()
            logits: Tensor = self.head(inputs)
            return logits

    return script(Network(), nn.CrossEntropyLoss(), points(300))  # with a last batch of fewer samples


@planted("parameters-without-gradient")
def detached_features() -> Script:
    """The features are detached, so only the head learns."""
    features = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
    model = nn.Sequential(features, Apply(torch.detach), nn.Linear(32, 4))
    return script(model, nn.CrossEntropyLoss(), points())


@planted("parameters-outside-optimizer")
def head_replaced_after_the_optimizer() -> Script:
    """The head is replaced when the optimizer has the parameters of the old one already."""
    model = perceptron(8, 1000)
    optimizer = Adam(model.parameters(), lr=0.01)
    model[2] = nn.Linear(32, 4)
    return script(model, nn.CrossEntropyLoss(), points(), optimizer=optimizer)


@planted("parameters-outside-optimizer")
def optimizer_of_the_head_only() -> Script:
    """The optimizer has the head only, but the rest was not frozen."""
    head = nn.Linear(32, 4)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), head)
    return script(model, nn.CrossEntropyLoss(), points(), optimizer=Adam(head.parameters(), lr=0.01))


@planted("parameters-outside-optimizer")
def biases_left_out() -> Script:
    """The user listed the parameters by name, and forgot the biases."""
    model = perceptron(8, 4)
    weights = [parameter for name, parameter in model.named_parameters() if name.endswith("weight")]
    return script(model, nn.CrossEntropyLoss(), points(), optimizer=Adam(weights, lr=0.01))


@planted("frozen-in-optimizer")
def frozen_backbone_in_the_optimizer() -> Script:
    """The backbone is frozen, and the optimizer has all parameters."""
    backbone = nn.Sequential(nn.Linear(8, 32), nn.ReLU()).requires_grad_(False)
    return script(nn.Sequential(backbone, nn.Linear(32, 4)), nn.CrossEntropyLoss(), points())


@planted("optimizer-of-another-model")
def optimizer_of_the_model_before() -> Script:
    """The model is made again after its optimizer."""
    optimizer = Adam(perceptron(8, 4).parameters(), lr=0.01)
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), points(), optimizer=optimizer)


@planted("optimizer-of-another-model")
def optimizer_of_the_teacher() -> Script:
    """Two models of a script are confused."""
    student, teacher = conv_net(), conv_net(channels=16)
    optimizer = SGD(teacher.parameters(), lr=0.1)
    return script(student, nn.CrossEntropyLoss(), pictures(), optimizer=optimizer)


@planted("evaluation-not-repeatable")
def dropout_in_evaluations() -> Script:
    """``functional.dropout`` without ``training=self.training`` is active in evaluations too."""
    dropout = Apply(functional.dropout)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), dropout, nn.Linear(32, 4))
    return script(model, nn.CrossEntropyLoss(), points(), eval_dataset=points(96, seed=2))


@planted("evaluation-not-repeatable")
def noise_in_evaluations() -> Script:
    """The noise that is to regularise the training is added in evaluations too."""
    noise = Apply(lambda inputs: inputs + 0.3 * torch.randn_like(inputs))
    return script(nn.Sequential(noise, perceptron(6, 1)), nn.MSELoss(), lines(), eval_dataset=lines(96, seed=2))


@planted("evaluation-not-repeatable")
def dropout_in_evaluations_of_a_loader() -> Script:
    """Dropout that ignores ``self.training``, evaluated by a DataLoader of the script."""
    dropout = Apply(lambda hidden: functional.dropout(hidden, p=0.1, training=True))
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), dropout, nn.Linear(32, 4))
    evaluation = DataLoader(points(96, seed=2), batch_size=48)
    return script(model, nn.CrossEntropyLoss(), points(), eval_dataset=evaluation)


@planted("loss-at-start")
def huge_weights_in_the_last_layer() -> Script:
    """The last layer is initialised with a hundred times the usual weights."""
    model = perceptron(8, 4)
    nn.init.normal_(model.get_submodule("2").get_parameter("weight"), std=20.0)
    return script(model, nn.CrossEntropyLoss(), points())


@planted("loss-at-start")
def standard_normal_weights() -> Script:
    """All layers of a deep network are initialised from a standard normal distribution."""
    layers = [nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)]
    for layer in layers:
        for parameter in layer.parameters():
            nn.init.normal_(parameter)
    return script(nn.Sequential(*layers), nn.CrossEntropyLoss(), points())


@planted("batch-not-learnt", do="look for what keeps the model from it", level="note")
def outputs_between_minus_one_and_one() -> Script:
    """A tanh at the end, for targets of around a hundred."""
    inputs, targets = lines().tensors
    data = TensorDataset(inputs, 100 + 20 * targets)
    return script(nn.Sequential(*perceptron(6, 1), nn.Tanh()), nn.MSELoss(), data)


@planted("batch-not-learnt")
def linear_model_for_a_product() -> Script:
    """The class is the sign of the product of two features, which no linear model can tell."""
    inputs, _ = points(features=2).tensors
    signs = torch.sign(torch.randn(len(inputs), 2, generator=torch.Generator().manual_seed(5)))
    data = TensorDataset(signs * (1 + 0.1 * inputs), (signs.prod(dim=1) > 0).long())
    return script(nn.Linear(2, 2), nn.CrossEntropyLoss(), data)


@planted("batch-of-one-with-batch-norm")
def batches_of_one() -> Script:
    """BatchNorm is trained on one picture at a time."""
    return script(conv_net(), nn.CrossEntropyLoss(), pictures(), per_device_batch_size=1)


@planted("batch-of-one-with-batch-norm")
def loader_of_single_pictures() -> Script:
    """The same with a DataLoader of the script, whose default is one sample a batch."""
    return script(conv_net(), nn.CrossEntropyLoss(), DataLoader(pictures(), shuffle=True))


@planted("batch-of-one-with-batch-norm")
def last_batch_of_one() -> Script:
    """BatchNorm meets a last batch with a single sample, at which the run fails at the end of the epoch."""
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    return script(model, nn.CrossEntropyLoss(), points(481))


@planted("half-precision-weights")
def weights_in_float16() -> Script:
    """The weights are converted to float16, in which SGD loses small steps."""
    inputs, targets = points().tensors
    model = perceptron(8, 4).half()
    optimizer = SGD(model.parameters(), lr=0.1)
    return script(model, nn.CrossEntropyLoss(), TensorDataset(inputs.half(), targets), optimizer=optimizer)


@planted("half-precision-weights")
def weights_in_bfloat16() -> Script:
    """The weights are converted to bfloat16, with the inputs converted in the model."""
    model = nn.Sequential(Apply(torch.Tensor.bfloat16), *perceptron(6, 1).bfloat16(), Apply(torch.Tensor.float))
    return script(model, nn.MSELoss(), lines(), optimizer=SGD(model.parameters(), lr=0.05))


@planted("weight-decay-on-norms")
def decay_of_all_parameters() -> Script:
    """AdamW shrinks the weights of BatchNorm and all biases as well."""
    model = conv_net()
    optimizer = AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    return script(model, nn.CrossEntropyLoss(), pictures(), optimizer=optimizer)


@planted("weight-decay-on-norms")
def decay_of_a_layer_norm() -> Script:
    """The same with LayerNorm."""
    model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    return script(model, nn.CrossEntropyLoss(), points(), optimizer=optimizer)
