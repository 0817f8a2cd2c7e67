"""Mistakes around the files of state images, planted as those in tests.sim.planted are."""

from __future__ import annotations

import pytest

from dledger.core.values import Base
from dledger.node.machine.state_feeder import StateFeeder
from dledger.replica.images import ImageRequest
from dledger.replica.log_state import LogState, span_of
from dledger.replica.retainer import Retainer
from dledger.store.format.internal import ImageBegin
from dledger.store.image_files import ImageFiles, ImageManifest, ImageReceiver, StoredImage
from dledger.testing.virtual.sim_disk import SimDisk


def purge_behind_the_image_of_the_leader_alone(patch: pytest.MonkeyPatch) -> None:
    """The entries are purged, the leader loses its disk, and nobody has their state."""
    patch.setattr(Retainer, "_shared_image", lambda retainer: retainer._replica.core.image_index)


def purged_without_an_own_image(patch: pytest.MonkeyPatch) -> None:
    """A node that restarts after the purge has neither the entries nor their state."""

    def due_purge(retainer: Retainer) -> Base | None:
        base, retainer.purge_to = retainer.purge_to, None
        return base

    patch.setattr(Retainer, "due_purge", due_purge)


def image_reported_before_it_is_complete(patch: pytest.MonkeyPatch) -> None:
    """A majority counts as having an image of which some have the first chunk only."""
    original = ImageFiles.receiver

    def receiver(files: ImageFiles, manifest: ImageManifest) -> ImageReceiver:
        result = original(files, manifest)
        files._newest = manifest
        return result

    patch.setattr(ImageFiles, "receiver", receiver)


def sessions_without_the_uncommitted_ones(patch: pytest.MonkeyPatch) -> None:
    """The sessions of an image are not those at its mark: batches before the mark are stored again."""

    def begin_image(retainer: Retainer, now_ms: int) -> None:
        replica = retainer._replica
        sessions = replica.admission.sessions.encode_committed()
        retainer._saving = retainer._append(ImageBegin(), now_ms)
        replica.shell.save_state(ImageRequest(retainer._saving, replica.core.term, sessions))

    patch.setattr(Retainer, "_begin_image", begin_image)


def state_of_a_later_point(patch: pytest.MonkeyPatch) -> None:
    """The state has entries behind the mark, which are applied to it again wherever it is loaded."""
    original = StateFeeder.begin_save

    def begin_save(feeder: StateFeeder, request: ImageRequest, applied: int) -> bool:
        return original(feeder, request, request.index - 1)

    patch.setattr(StateFeeder, "begin_save", begin_save)


def sessions_of_a_mark_of_another_term(patch: pytest.MonkeyPatch) -> None:
    """The mark was truncated with the entries before it, whose sessions the node takes."""
    original = LogState.offer

    def offer(state: LogState, image: StoredImage) -> bool:
        mark = image.mark
        terms = [head.term for head in state._deferred if head.first_index == mark.index]
        if terms:
            manifest = ImageManifest(mark._replace(term=terms[0]), len(image.sessions), 0, ())
            image = StoredImage(manifest, image.sessions)
        return original(state, image)

    patch.setattr(LogState, "offer", offer)


def image_of_another_term_adopted(patch: pytest.MonkeyPatch) -> None:
    """A node reports, and purges below, an image of a history that never happened."""

    def adopt(retainer: Retainer) -> None:
        core, offered = retainer._replica.core, retainer._offered
        if offered is not None and offered.mark.index <= core.committed_index:
            retainer._offered = None
            retainer._replica.admission.state.image = span_of(offered)
            retainer.publish()

    patch.setattr(Retainer, "_adopt", adopt)


def manifest_before_its_data_is_durable(patch: pytest.MonkeyPatch) -> None:
    """After a power failure there is a complete image without its content."""
    original = SimDisk.fdatasync

    def fdatasync(disk: SimDisk, handle: int) -> None:
        if disk._handle(handle).path.suffix != ".arriving":
            original(disk, handle)

    patch.setattr(SimDisk, "fdatasync", fdatasync)
