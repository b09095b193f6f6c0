import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint._src.serialization import tensorstore_utils

from gmlp_flax.checkpoints import places
from gmlp_flax.errors import RunError

MOUNTS = r"""
/dev/root / ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
my-bucket /mnt/my\040runs fuse.gcsfuse rw,nosuid 0 0
/dev/sdb /mnt/my\040runs/disk ext4 rw 0 0
s3fs /mnt/s3 fuse.s3fs rw 0 0
mountpoint-s3 /mnt/aws fuse rw 0 0
sshfs /mnt/far fuse.sshfs rw 0 0
gke-bucket /gke fuse rw 0 0
b /mnt/données fuse.gcsfuse rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "bucket"),
    [
        ("gs://b/runs/x", True),
        ("/mnt/my runs", True),
        ("/mnt/my runs/a/b", True),
        ("/mnt/my runs/disk/a", False),
        ("/mnt/my runs2/a", False),
        ("/mnt/s3/a", True),
        ("/mnt/aws/a", True),
        ("/mnt/far/a", False),
        ("/gke/runs", True),
        ("/mnt/données/a", True),
        ("/home/x", False),
    ],
)
def test_mounted_buckets_are_found_by_their_type(tmp_path, monkeypatch, folder, bucket):
    (tmp_path / "mounts").write_text(MOUNTS)
    monkeypatch.setattr(places, "MOUNTS", str(tmp_path / "mounts"))
    modes = ocp.options.AtomicityMode
    assert places.is_bucket(folder) == bucket
    assert places.atomicity(folder).mode == (modes.COMMIT_FILE if bucket else modes.ATOMIC_RENAME)


def test_without_a_table_of_mounts(monkeypatch):
    monkeypatch.setattr(places, "MOUNTS", "/no/such/file")
    assert not places.is_bucket("/mnt/x")


def test_stores_that_orbax_does_not_write_to():
    places.check("gs://b/x")
    places.check("/disk/x")
    with pytest.raises(
        RunError, match="^s3://b/x: Orbax writes checkpoints to disks and to gs://, not to s3://; give a bucket"
    ):
        places.check("s3://b/x")


def test_tensorstore_takes_the_limits():
    """Orbax has no option for them: its own context is changed."""
    places.limit_retries()
    for ocdbt in (False, True):
        context = tensorstore_utils.get_ts_context(use_ocdbt=ocdbt)
        assert context["gcs_request_retries"].to_json() == places.RETRIES
