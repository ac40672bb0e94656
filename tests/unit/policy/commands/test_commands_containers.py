"""Containers and machines elsewhere: what runs there, and what ties it to this machine."""

from __future__ import annotations

import pytest

from unit.policy.commands.opening import Tables, told

pytestmark = pytest.mark.requirement("POL-2", "POL-3")

EVERYDAY = r"""
docker build --output=type=docker .
docker volume ls
docker volume create x
docker container ls
docker run --mount type=bind,src=./x,target=/h a
hg clone https://x.org/y
aws s3 ls
gh config get pager
docker ps
docker ps -a
docker images
docker build -t x .
docker logs -f web
docker compose up -d
docker compose logs web
docker compose down
docker pull alpine
docker inspect x
kubectl get pods
kubectl -n x get pods
kubectl logs -f p
terraform plan
terraform init
helm list
gh pr list
gh pr create --title x --body y
gh issue view 1
gh api repos/a/b
docker run --rm -v ./src:/app node npm test
docker exec -it web ls
kubectl exec pod -- ls
docker run --rm -v /home/u/proj:/app node:20 npm test
docker run --rm -v /data/project:/app alpine ls
kubectl get pods -A -o wide
docker compose -f docker-compose.yml -f dev.yml up -d
docker-compose -f dev.yml up
docker compose exec web npm test
docker compose exec -T db psql -c 'select 1'
docker compose cp web:/app/x out
"""

FOUND = r"""
docker volume create -o device=/ -o o=bind x -> danger | danger -o
docker container create --mount type=bind,source=//,target=/h a -> danger
docker run --cap-add SYS_ADMIN a -> danger
docker run --cap-add=NET_ADMIN a -> danger --cap-add
docker run --device=/dev/sda a -> danger
docker build --output type=local,dest=/etc . -> write /etc
docker build --secret id=x,src=/k . -> read /k
aws configure set credential_process x -> danger
hg clone ssh://-oProxyCommand=x/y -> danger ssh://-oProxyCommand=x/y
hg config --edit -> danger --edit | write .hg/hgrc
gh config set pager x -> danger set | write .config/gh/config.yml
svn commit --editor-cmd='rm x' -> script rm x
docker compose config -o ../x -> write ../x
docker-compose config -o ../x -> write ../x
docker run -v /home/u/.ssh:/k alpine cat /k/id_rsa -> danger -v | inner cat /k/id_rsa
docker run --mount type=bind,source=/home/u/.aws,target=/k alpine ls -> danger --mount | inner ls
docker run -v /:/host alpine sh -> danger | inner sh
docker run --privileged alpine -> danger --privileged
docker run --pid=host alpine -> danger --pid
docker run --net=host a -> danger --net
docker run --network host a -> danger --network
docker run -v /var/run/docker.sock:/var/run/docker.sock a -> danger -v
docker run --mount type=bind,source=/,target=/h a -> danger
docker run -v @u:/x a -> danger -v
docker exec c rm x -> inner rm x
docker -H tcp://x ps -> danger -H
docker compose exec --privileged web ls -> danger --privileged
docker compose run --rm web rm x -> inner rm x
docker compose -f a.yml -f b.yml up -> read a.yml | read b.yml
docker compose -f - up -> danger -f
docker compose --file=- up -> danger --file
docker compose -f /dev/stdin up -> danger -f
docker compose -f /proc/self/fd/0 up -> danger -f
docker compose -f https://x/y.yml up -> danger -f
docker compose -f git@example.com:x/y.git up -> danger -f
docker compose -f oci://x/y up -> danger -f
docker-compose -f - up -> danger -f
docker-compose -f https://x/y.yml up -> danger -f
docker compose cp /etc/shadow web:/x -> read /etc/shadow
docker compose cp web:/x /etc/y -> write /etc/y
docker compose cp @u web:/x -> read …
kubectl exec p -- rm x -> inner rm x
hg --config alias.x='!rm' x -> danger --config | danger x
svn --config-option x y -> danger --config-option
svn diff --diff-cmd=rm -> open rm
gh alias set x y -> danger set | write .config/gh/config.yml
gh extension install x -> danger extension
ansible all -m shell -a 'rm' -> danger -a | danger -m
ansible all -a 'rm' -> danger -a
vagrant ssh -c 'rm' -> script rm
terraform apply -> danger apply
helm install --post-renderer x y -> open x
hg status --config x=y -> danger --config
kubectl get pods --kubeconfig=/x -> danger --kubeconfig
docker run -v /home/u:/x a -> danger -v
docker run -v /etc/passwd:/x a -> danger -v
"""


class TestTables(Tables):
    """What stands in `EVERYDAY` and `FOUND`."""


def test_what_compose_executes_stays_in_a_container_that_the_project_describes():
    assert told("docker compose exec web rm -rf /") == []
    assert told("docker compose exec -it web sh -c 'rm x'") == []
