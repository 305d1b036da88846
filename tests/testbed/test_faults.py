"""Every fault is seen in the way a launcher would see it, and is gone afterwards."""

from tests.testbed import faults
from tests.testbed.host import Host
from tests.testbed.hosts import Testbed


def test_stopped_sshd_refuses_at_once(testbed: Testbed) -> None:
    host = testbed.hosts[0]
    with faults.sshd_stopped(host):
        refused = testbed.ssh(host, "true")
    assert refused.status == 255
    assert "Connection refused" in refused.stderr
    assert refused.wall_s < 2
    assert testbed.ssh(host, "true").status == 0


def test_frozen_sshd_times_out(testbed: Testbed) -> None:
    host = testbed.hosts[0]
    with faults.frozen(host, "sshd"):
        waited = testbed.ssh(host, "true")
    assert "timed out during banner exchange" in waited.stderr
    assert testbed.ssh(host, "true").status == 0


def test_link_down_makes_ssh_time_out(testbed: Testbed) -> None:
    host = testbed.hosts[1]
    with faults.link_down(host):
        lost = testbed.ssh(host, "true")
        carrier = host.run("cat", "/sys/class/net/eth0/carrier")
        assert testbed.ssh(testbed.hosts[0], "true").status == 0
    assert carrier == "0\n"
    assert lost.status == 255
    assert "timed out" in lost.stderr or "No route to host" in lost.stderr
    assert 2.5 < lost.wall_s < 8
    assert testbed.ssh(host, "true").status == 0


def test_mtu_change_is_seen(testbed: Testbed) -> None:
    host = testbed.hosts[0]
    read = "cat /sys/class/net/eth0/mtu"
    with faults.mtu(host, 1280):
        assert testbed.ssh(host, read).stdout == "1280\n"
    assert testbed.ssh(host, read).stdout == "1500\n"


def test_small_disk_fills_up(hosts: tuple[Host, ...]) -> None:
    host = hosts[0]
    with faults.small_disk(host, "/root/models", mib=2):
        full = host.attempt("dd", "if=/dev/zero", "of=/root/models/shard", "bs=1M", "count=4")
    assert "No space left on device" in full.stderr
    assert host.run("ls", "/root/models") == ""


def test_rate_limit_slows_a_copy(testbed: Testbed) -> None:
    """2 MB at 8 Mbit/s take 2 s less the burst; without the limit far less than 1 s."""
    host = testbed.hosts[1]
    copy = "dd if=/dev/zero bs=1000000 count=2 2>/dev/null"
    free = testbed.ssh(host, copy).wall_s
    with faults.rate_limit(host, mbit=8):
        limited = testbed.ssh(host, copy).wall_s
    assert limited > 1.8
    assert limited > 2 * free


def test_packet_loss_drops_its_share(hosts: tuple[Host, ...]) -> None:
    """Of 200 datagrams about 40; fewer than 10 or more than 80 would be a wonder."""
    head, worker = hosts
    link = "import socket; link = socket.socket(type=socket.SOCK_DGRAM)"
    send = f"{link}; [link.sendto(b'x', ('spark2', 9)) for _ in range(200)]"
    with faults.packet_loss(worker, 0.2):
        head.run("/usr/bin/python3", "-c", send)
        rule = worker.run("iptables", "-w", "-L", "INPUT", "-v", "-x", "-n").splitlines()[2]
    assert 10 <= int(rule.split()[0]) <= 80
    assert "DROP" not in worker.run("iptables", "-w", "-S", "INPUT")
