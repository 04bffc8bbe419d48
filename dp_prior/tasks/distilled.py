"""The distilled policy: one or two network evaluations lead where many steps of a trained policy, its teacher, lead.

DDIM maps a noisy chunk x_t to a clean one. The student learns that map of the teacher, at the timesteps that its own
sampler visits. Its loss is the usual loss with another x_0 and eps: the end of the teacher's trajectory from x_t, and
the noise that turns this end into x_t. Network, checkpoint and samplers are those of a policy, and acting needs no
teacher.

Source: Luhman and Luhman 2021 (arXiv:2101.02388), for one step. Two steps are the multistep sampling of consistency
models (Song et al. 2023, arXiv:2303.01469, algorithm 1), which is DDIM with eta 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from dp_prior.checkpoints.format import read_manifest
from dp_prior.config import Change, ConfigError, Outside, errors_of
from dp_prior.diffusion.process_config import DiffusionConfig
from dp_prior.diffusion.sampler import DDIM
from dp_prior.diffusion.timesteps import ListedTimesteps
from dp_prior.places.reference import resolve
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tensors.batch import Batch
from dp_prior.tensors.randomness import Randomness

TEACHER_FILE = "model.safetensors"

UNSUPPORTED = ("start", "draws", "self_condition", "guidance", "variance", "weighting")
"""Fields of `diffusion` that a distilled policy leaves at their defaults: guidance is learned from the teacher, and
other weightings leave the noisiest timestep out."""


class DistilledPolicyConfig(PolicyConfig):
    """A policy that learns the samples of another one, its teacher, in fewer steps.

    It starts from the teacher's weights, which `train.init_from` names too, and has the teacher's data, network and
    noise schedule.
    """

    type: Literal["distilled_policy"] = "distilled_policy"

    cond_dropout: ClassVar = {}

    teacher: Annotated[str, Change("harmless"), Outside()]
    """The policy to distil: a run, a checkpoint, or another reference that `load_policy` reads. Only training and the
    `loss` evaluator need it."""

    teacher_steps: int = Field(default=8, ge=1)
    """Steps of DDIM in which the teacher goes from noise to a chunk; a training step evaluates the teacher as often."""

    teacher_sha256: str | None = None
    """Hash of the teacher's weights; null: filled in at the start of a run, which refuses to resume with other
    weights."""

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        diffusion = self.diffusion
        for name in UNSUPPORTED:
            if getattr(diffusion, name) != DiffusionConfig.model_fields[name].default:
                yield f"diffusion.{name} has no meaning in a distilled policy; remove it"
        if self.prefix is not None:
            yield "prefix has no meaning in a distilled policy, which learns whole chunks of its teacher; remove it"
        try:
            visited = self.sampler.timesteps(diffusion.schedule.table())
            teacher_timesteps = DDIM(steps=self.teacher_steps).timesteps(diffusion.schedule.table())
        except ValueError as error:
            yield f"teacher_steps or sampler does not fit diffusion.schedule: {error}"
            return
        listed = diffusion.timesteps.listed if isinstance(diffusion.timesteps, ListedTimesteps) else None
        if listed is None:
            yield (
                f"diffusion.timesteps is {diffusion.timesteps.type!r}, but only those that the sampler visits should "
                f'be trained; use {{"type": "listed", "listed": {sorted(visited)}}}'
            )
        elif unknown := sorted({*listed} - {*teacher_timesteps}):
            yield (
                f"diffusion.timesteps lists {unknown}, which the {self.teacher_steps} steps of the teacher do not "
                f"visit; they visit {list(teacher_timesteps)}"
            )

    def resolve(self) -> Self:
        """See `PolicyConfig.resolve`; fills in `teacher_sha256`."""
        resolved = super().resolve()
        digest = resolved.teacher_sha256 or digest_of(resolved.teacher)
        return resolved.model_copy(update={"teacher_sha256": digest})

    def _build(self, policy: type[DiffusionPolicy], *parts: Any) -> DistilledPolicy:
        return super()._build(DistilledPolicy, *parts)


def digest_of(teacher: str) -> str:
    """Read the SHA-256 of a teacher's weights from the manifest of its checkpoint.

    Raises:
        ConfigError: the reference leads to no checkpoint, or to one without weights.
    """
    with errors_of("task.teacher", OSError):
        files = read_manifest(resolve(teacher, whole=False)).files
    if TEACHER_FILE not in files:
        raise ConfigError("task.teacher", [f"{teacher!r} has no {TEACHER_FILE}; name a run, a checkpoint or an export"])
    return files[TEACHER_FILE].sha256


class Teacher:
    """The trained policy, loaded for the first loss; copies of the student share the teacher."""

    def __init__(self, record: DistilledPolicyConfig):
        self.record = record
        self.sampler = DDIM(steps=record.teacher_steps)
        self._policy: DiffusionPolicy | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Teacher:
        return self

    def policy(self, student: DiffusionPolicy, device: torch.device) -> DiffusionPolicy:
        """The teacher of this student, on a device.

        Raises:
            ConfigError: the teacher does not fit this student, or its weights have changed since the run began.
        """
        if self._policy is None:
            reference, digest = self.record.teacher, self.record.teacher_sha256
            if digest not in (None, digest_of(reference)):
                problem = f"the weights of {reference!r} have changed since this run began; name the checkpoint"
                raise ConfigError("task.teacher", [problem])
            teacher = DiffusionPolicy.from_pretrained(reference)
            problems = list(_misfits(teacher, student, self.sampler))
            if problems:
                raise ConfigError("task.teacher", problems)
            self._policy = teacher.to(device)
        return self._policy


def _misfits(teacher: DiffusionPolicy, student: DiffusionPolicy, sampler: DDIM) -> Iterator[str]:
    """Why a student cannot learn from this teacher."""
    teacher_record, student_record = teacher.record, student.record
    for name, teacher_value, student_value in (
        ("shapes", teacher.spec.without_content(), student.spec.without_content()),
        ("diffusion.schedule", teacher_record.diffusion.schedule, student_record.diffusion.schedule),
        ("relative_to", teacher_record.relative_to, student_record.relative_to),
        ("arms", teacher_record.arms, student_record.arms),
    ):
        if teacher_value != student_value:
            yield f"the teacher has {name} {teacher_value!r}, this policy {student_value!r}; they must be equal"
            return
    for name in ("start", "self_condition"):
        teacher_value = getattr(teacher_record.diffusion, name)
        if teacher_value != DiffusionConfig.model_fields[name].default:
            yield (
                f"the teacher was trained with diffusion.{name} {teacher_value!r}, so it does not lead from every "
                f"noisy chunk to a clean one; distil a policy without it"
            )
    for fault in teacher_record.diffusion.sampler_faults(sampler):
        yield f"the teacher cannot take task.teacher_steps: {fault}"
    normal, normal_student = teacher.normalizer.state_dict(), student.normalizer.state_dict()
    if any(not torch.equal(value, normal_student[name].cpu()) for name, value in normal.items()):
        yield "the teacher normalises otherwise; set train.init_from to the teacher, which has its normalizer"


class DistilledPolicy(DiffusionPolicy):
    """Acts like any policy; only its loss reads the teacher."""

    task = "distilled_policy"

    def __init__(self, *, record: DistilledPolicyConfig, **parts: Any):
        super().__init__(record=record, **parts)
        self.teacher = Teacher(record)

    def train(self, mode: bool = True) -> Self:
        """Also loads the teacher, because the first step may be compiled."""
        if mode:
            self.teacher.policy(self, next(self.parameters()).device)
        return super().train(mode)

    @torch.no_grad()
    def training_target(self, batch: Batch, random: Randomness) -> tuple[Tensor, Tensor]:
        """Where the teacher leads x_t, and the noise that makes the same x_t of it; both (B, horizon, action_dim)."""
        x_0, process = self.diffused(batch.x, batch.cond), self.process
        t, _ = process.timesteps.draw(random.stream("timestep"), batch.positions)
        alpha, sigma = process.levels[:2, t, None, None]
        x_t = alpha * x_0 + sigma * random.stream("noise").normal(*x_0.shape[1:])
        teacher = self.teacher.policy(self, x_0.device)
        end = self.teacher.sampler.lead(teacher.denoiser(batch.cond), x_t, t, process.table)
        return end, (x_t - alpha * end) / sigma
