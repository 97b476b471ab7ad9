"""The training loop of a fit, for S sites at once: steps, early stopping, the best weights.

Gradients come from two sources, and a test says that it does not matter which. `autograd_likelihood` (a
single site): autograd for L, the closed form for R. `closed_form` (many sites): the layers' own backward
pass too, with no graph. `autograd`: everything from the formulas, nothing cached; the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedmap.algorithm.fit.adam import Adam
from fedmap.algorithm.fit.batches import Batch, BatchStream, PackedRows, pack
from fedmap.algorithm.fit.rule import FitStart, LocalRule
from fedmap.algorithm.fit.values import FailedFit, GradientSource, LocalFit, Model, SiteTask
from fedmap.algorithm.model.layers import Buffers, Pass
from fedmap.algorithm.model.likelihood import Outcome
from fedmap.algorithm.prior.penalty import AnchoredPenalty
from fedmap.algorithm.prior.weights import log_weight
from fedmap.algorithm.settings import FedmapSettings, TrainingSettings

EVALUATION_ROWS = 256
OnEpoch = Callable[[int, int], None]  # (epochs done, most epochs)


class BatchedFit:
    """One fit of S sites. Sites that stop early leave the batch; their best is kept by index."""

    def __init__(
        self,
        model: Model,
        settings: FedmapSettings,
        penalty: AnchoredPenalty | None,
        tasks: Sequence[SiteTask],
        gradient: GradientSource,
        rule: LocalRule | None = None,
    ) -> None:
        self._model = model
        self._settings = settings
        self._penalty = penalty
        self._gradient = gradient
        training = settings.training
        self._train = pack([task.train for task in tasks], model.likelihood)
        self._validation = pack([task.validation for task in tasks], model.likelihood)
        self._validation_outcome = self._validation.outcome()
        self._judges = _can_judge(self._validation)  # (S,) bool
        self._theta = torch.stack([task.theta for task in tasks])  # (S, d), a copy
        self._buffers = Buffers(
            torch.stack([task.buffers.mean for task in tasks]),
            torch.stack([task.buffers.variance for task in tasks]),
            torch.stack([task.buffers.count for task in tasks]),
        )
        seeds = [task.seed for task in tasks]
        self._adam = Adam(self._theta, training.learning_rate)
        self._steps = None
        if rule is not None:
            rows = torch.from_numpy(self._train.rows.astype(np.float32))
            self._steps = rule.begin(FitStart(self._theta, rows, seeds, training.learning_rate))
        self._beside = torch.stack([_beside(task) for task in tasks])  # (S, k, d), a copy
        self._stream = BatchStream(self._train, seeds, training.batch_size, model.network.dropouts)
        # Copies, never references: the best must not move when training goes on.
        self._best_theta = self._theta.clone()
        self._best_beside = self._beside.clone()
        self._best_buffers = _copy(self._buffers)
        self._best_loss = np.full(len(tasks), np.inf)
        self._best_epoch = np.zeros(len(tasks), dtype=np.int64)
        self._epochs = np.zeros(len(tasks), dtype=np.int64)

    def run(self, on_epoch: OnEpoch | None = None) -> list[LocalFit | FailedFit]:
        training = self._settings.training
        alive = np.arange(len(self._best_loss))
        train, validation = self._train, self._validation
        for epoch in range(1, training.epochs + 1):
            for batch in self._stream.epoch():
                self._step(batch, training)
            stopped = self._judge(epoch, alive, validation)
            if on_epoch is not None:
                on_epoch(epoch, training.epochs)
            if stopped.all():
                break
            if stopped.any():
                keep = np.flatnonzero(~stopped)
                alive = alive[keep]
                train, validation = train.select(keep), validation.select(keep)
                self._shrink(keep, train, validation)
        return self._results()

    def _step(self, batch: Batch, training: TrainingSettings) -> None:
        theta = self._theta[: batch.sites]
        gradient = partial(self._batch_gradient, batch, training)
        if self._steps is None:
            self._adam.step(theta, gradient(theta))
        else:
            self._steps.step(theta, self._beside[: batch.sites], gradient)

    def _batch_gradient(self, batch: Batch, training: TrainingSettings, theta: Tensor) -> Tensor:
        """The gradient of a batch at θ; running batch-norm statistics move along."""
        rows = batch.rows.view(-1, 1, 1)
        at = Pass(
            training=True,
            rows=rows if batch.padded else None,
            mask=batch.outcome.weight.unsqueeze(-1) if batch.padded else None,
            keep=batch.keep,
        )
        if self._gradient == "closed_form":
            grad = self._closed_form_gradient(theta, batch, at)
        else:
            grad = self._autograd_gradient(theta, batch, at)
        if training.weight_decay:
            grad.add_(theta, alpha=training.weight_decay)
        if at.batch_mean:
            moved = self._model.network.moved_buffers(_first(self._buffers, batch.sites), at)
            self._buffers.mean[: batch.sites] = moved.mean
            self._buffers.variance[: batch.sites] = moved.variance
            self._buffers.count[: batch.sites] = moved.count
        return grad

    def _closed_form_gradient(self, theta: Tensor, batch: Batch, at: Pass) -> Tensor:
        network = self._model.network
        params = network.spec.views(theta)
        outputs, trace = network.forward(params, batch.features, at)
        by_output = self._model.output_gradient(outputs, batch.outcome)
        grads = network.backward(params, trace, by_output.div_(batch.rows.view(-1, 1, 1)))
        flat = network.spec.flatten(grads, lead=1)
        return flat if self._penalty is None else self._penalty.add_gradient(theta, flat)

    def _autograd_gradient(self, theta: Tensor, batch: Batch, at: Pass) -> Tensor:
        network = self._model.network
        # One leaf per parameter: slicing a single leaf would write a full-length gradient per slice.
        leaves = tuple(view.detach().requires_grad_() for view in network.spec.views(theta))
        outputs, _ = network.forward(leaves, batch.features, at)
        loss = self._model.loss(outputs, batch.outcome) / batch.rows
        inputs = leaves
        if self._penalty is not None and self._gradient == "autograd":
            mu = self._penalty.mu.detach().requires_grad_()
            loss = loss + self._penalty.plain_value(network.spec.flatten(leaves, lead=1), mu)
            inputs = (*leaves, mu)  # R is one network of (θ, μ): its plain gradient is in both
        grads = torch.autograd.grad(loss.sum(), inputs)
        flat = network.spec.flatten(grads[: len(leaves)], lead=1)
        if self._penalty is not None and self._gradient == "autograd_likelihood":
            self._penalty.add_gradient(theta, flat)
        return flat

    def _judge(self, epoch: int, alive: np.ndarray, validation: PackedRows) -> np.ndarray:
        """Score the epoch on validation rows, keep the best of each site, say who has run out of patience."""
        losses = loss_per_row(self._model, self._theta, self._buffers, validation, self._validation_outcome)
        better = (np.isfinite(losses) & (losses < self._best_loss[alive])) | ~self._judges
        self._epochs[alive] = epoch
        at = np.flatnonzero(better)
        into = torch.from_numpy(alive[at])
        source = torch.from_numpy(at)
        self._best_loss[alive[at]] = np.where(self._judges[at], losses[at], np.inf)
        self._best_epoch[alive[at]] = epoch
        self._best_theta[into] = self._theta[source]
        self._best_beside[into] = self._beside[source]
        self._best_buffers.mean[into] = self._buffers.mean[source]
        self._best_buffers.variance[into] = self._buffers.variance[source]
        self._best_buffers.count[into] = self._buffers.count[source]
        waited = epoch - self._best_epoch[alive]
        return np.asarray(waited >= self._settings.training.patience)

    def _shrink(self, keep: np.ndarray, train: PackedRows, validation: PackedRows) -> None:
        at = torch.from_numpy(keep)
        self._theta = self._theta[at]
        self._buffers = Buffers(self._buffers.mean[at], self._buffers.variance[at], self._buffers.count[at])
        self._beside = self._beside[at]
        self._adam.select(at)
        if self._steps is not None:
            self._steps.select(at)
        self._judges = self._judges[keep]
        self._validation_outcome = validation.outcome()
        self._stream.select(keep, train)

    def _results(self) -> list[LocalFit | FailedFit]:
        theta, buffers = self._best_theta, self._best_buffers
        per_row = loss_per_row(self._model, theta, buffers, self._train, self._train.outcome())
        with torch.no_grad():
            penalties = (
                torch.zeros(len(theta)) if self._penalty is None else self._penalty.value(theta)
            ).double()
        finite = (torch.isfinite(theta).all(1) & torch.isfinite(self._best_beside).all(2).all(1)).numpy()
        results: list[LocalFit | FailedFit] = []
        for site, rows in enumerate(self._train.rows):
            loss, penalty = float(per_row[site] * rows), float(penalties[site])
            usable = finite[site] and np.isfinite(loss) and np.isfinite(penalty)
            if not usable or self._best_epoch[site] == 0:  # epoch 0: no epoch ever had a finite loss
                results.append(FailedFit(f"training diverged within {int(self._epochs[site])} epoch(s)"))
                continue
            best = self._best_loss[site]
            weighed = self._train.event is None or bool(self._train.event[site].any())
            rule = self._settings.aggregation.weighting
            results.append(
                LocalFit(
                    theta=theta[site].clone(),
                    buffers=Buffers(
                        buffers.mean[site].clone(),
                        buffers.variance[site].clone(),
                        buffers.count[site].clone(),
                    ),
                    log_omega=log_weight(rule, loss, penalty, int(rows)) if weighed else None,
                    loss=loss,
                    penalty=penalty,
                    rows=int(rows),
                    epochs=int(self._epochs[site]),
                    best_epoch=int(self._best_epoch[site]),
                    validation_loss=float(best) if np.isfinite(best) else None,
                    beside=self._best_beside[site].clone() if self._beside.shape[1] else None,
                )
            )
        return results


def loss_per_row(
    model: Model, theta: Tensor, buffers: Buffers, data: PackedRows, outcome: Outcome
) -> np.ndarray:
    """L/N of each site on all rows of a part, in evaluation mode, (S,); 0 rows give 0."""
    if data.features.shape[1] == 0:
        return np.zeros(len(data.rows))
    # A block of rows at a time: activations that fit the cache cost a fraction of ones that do not.
    blocks = [
        model.network.predict(theta, buffers, x) for x in torch.split(data.features, EVALUATION_ROWS, dim=1)
    ]
    outputs = torch.cat(blocks, dim=1).double()
    with torch.no_grad():
        total = model.loss(outputs, outcome)
    return np.asarray(total.numpy() / np.maximum(data.rows, 1))


def _can_judge(validation: PackedRows) -> np.ndarray:
    """Sites whose validation part says something: it has rows and, for survival, an event."""
    if validation.event is None:
        return validation.rows > 0
    return np.asarray(validation.event.any(axis=1))


def _beside(task: SiteTask) -> Tensor:
    """What a rule keeps beside θ; nothing, (0, d), where there is none."""
    return task.theta.new_zeros(0, len(task.theta)) if task.beside is None else task.beside


def _first(buffers: Buffers, sites: int) -> Buffers:
    return Buffers(buffers.mean[:sites], buffers.variance[:sites], buffers.count[:sites])


def _copy(buffers: Buffers) -> Buffers:
    return Buffers(buffers.mean.clone(), buffers.variance.clone(), buffers.count.clone())
