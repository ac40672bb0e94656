"""Programs that build: what lets them run more than the project says."""

from __future__ import annotations

import pytest

from unit.policy.commands.opening import Tables

pytestmark = pytest.mark.requirement("POL-2", "POL-3")

EVERYDAY = r"""
cmake --build build --target x -- -j4 VERBOSE=1
dotnet build -p:Configuration=Release
gcc -Wl,-rpath,/usr/lib x.c
cargo build --release
go tool pprof x
ruff check .
ruff check --fix src
black --check src
eslint src --ext .ts --fix -f json
playwright test --project=chromium
uvicorn app.main:app --port 8001
alembic upgrade head
mypy src
pytest -q -k foo tests/x.py
pytest -x --lf
pytest --cov=src --cov-report=term-missing
cargo build --release
cargo test -- --nocapture
cargo clippy -- -D warnings
cargo fmt
cargo run --bin x
cargo add serde
cargo check
cargo +nightly fmt
go build ./...
go test ./... -run TestX -v
go test -race -cover ./...
go run main.go
go mod tidy
go vet ./...
go fmt ./...
go build -o bin/x ./cmd/x
go env GOPATH
go version
make
make test
make -j4
make -C sub all
make build VERSION=1.2
make -n
cmake -S . -B build
cmake --build build -j 4
cmake -DCMAKE_BUILD_TYPE=Release ..
ctest --test-dir build
ninja -C build
gcc -O2 -Wall -o x x.c
gcc -c x.c -Iinclude -DX=1
g++ -std=c++17 x.cpp -lm
rustc x.rs
mvn clean install
mvn test -Dtest=X
gradle build
./gradlew test
ruff check src
ruff format --check .
mypy src
black .
eslint src --fix
prettier --write .
tsc --noEmit
jest --watch
vitest run
pre-commit run --all-files
tox -e py311
rake test
coverage run -m pytest
coverage report
flask run
flask run --debug
rails s
dotnet build
go install ./...
cargo build --features x
rails db:migrate
make CFLAGS='-O2 -g' all
"""

FOUND = r"""
cmake --build . -- SHELL=./x -> script ./x
cmake --build . -- --eval=x -> danger --eval=x
gcc -Wl,-o,/x y.c -> write /x | read y.c
gcc -dumpdir /x y.c -> write /x | read y.c
gcc -include /k x.c -> read /k | read x.c
cargo build --target-dir /x -> write /x
go env -w CC=x -> danger -w | write .config/go/env
go tool compile -o /x y.go -> write /x
dotnet build -p:PreBuildEvent=x -> danger -p:PreBuildEvent=x
dotnet build -o /x -> write /x
make PATH=/tmp/x -> set PATH=/tmp/x
make LD_PRELOAD:=/tmp/x.so -> set LD_PRELOAD=/tmp/x.so
make BASH_ENV=/tmp/x -> set BASH_ENV=/tmp/x
make -f //dev/stdin -> danger
coverage xml -o ../x -> write ../x
coverage html -d ../x -> write ../x
coverage erase --data-file=../x -> write ../x
mypy --junit-xml ../x a -> write ../x
black ../x.py -> read ../x.py | write ../x.py
isort ../x.py -> read ../x.py | write ../x.py
ruff format ../x.py -> read ../x.py | write ../x.py
ruff check --fix ../x.py -> read ../x.py | write ../x.py
ruff check x.py -> read x.py
ruff check @s -> danger | read …
prettier --write ../x -> read ../x | write ../x
jest --outputFile=../x --json -> write ../x
vitest --outputFile.json=../x -> write ../x
jest --reporters=/tmp/x.js -> danger --reporters
eslint --format /tmp/x.js . -> danger --format
eslint -c /tmp/x.js . -> danger -c
eslint -c ../x.js . -> danger -c
playwright open http://h -> danger open
playwright screenshot http://h x.png -> danger screenshot
alembic init ../x -> write ../x
uvicorn os:system -> danger os:system
pytest --basetemp=src -> danger --basetemp
pytest -o cache_dir=../x -> write ../x
pytest -o addopts=-px -> danger -o
pytest --cov-report=html:../x -> write ../x
make -f - -> stdin make
make --eval='x:;rm' -> make --eval refused
make SHELL=/tmp/x -> script /tmp/x
make -E 'x:;rm' -> make -E refused
make CC='rm x' -> script rm x
make 'X:=$(shell rm)' -> danger X:=$(shell rm)
m4 -> danger m4 | stdin m4
m4 x.m4 -> danger m4 | read x.m4
go run -exec rm x.go -> read x.go | script rm
go test -exec=rm ./... -> script rm
go build -toolexec='rm x' . -> script rm x
go generate ./... -> danger generate
go vet -vettool=x -> script x
cargo --config 'build.rustc="x"' build -> danger --config
cargo build --config x -> danger --config
cargo xyz -> danger xyz
rustc -C linker=/x y -> danger -C | read y
rustc -Clinker=/x y -> danger -C | read y
gcc -wrapper rm x.c -> danger -wrapper | read x.c
gcc -fplugin=./x.so y.c -> danger -fplugin | read y.c
gcc @f -> danger @f | read f | read …
gcc -B/tmp/x y.c -> danger -B/tmp/x | read y.c
gcc -specs=x y.c -> danger -specs | read y.c
gcc -Wl,-plugin,x y.c -> danger -Wl,-plugin,x | read y.c
ld -plugin x -> danger -plugin
cmake -P x -> danger -P
cmake -DX=1 -Px.cmake -> danger -P
cmake -C x . -> read x
cmake -E rm x -> danger -E
cmake -DCMAKE_C_COMPILER=/x . -> danger -D
cargo install --git x -> danger --git
mvn exec:exec -> danger exec:exec
mvn -Dexec.executable=rm exec:exec -> danger -D | danger exec:exec
gradle -I x build -> danger -I
jest --config x -> danger --config
eslint --rulesdir x . -> danger --rulesdir
pytest -p evil -> danger -p
pytest -c x -> read x
tox -c x -> danger -c
rake -e 'x' -> ruby -e harmless
latex -shell-escape x -> danger -shell-escape
pandoc --filter x y -> danger --filter | read y
bazel test --run_under=rm //x -> script rm
cargo fmt --config x -> danger --config
./manage.py dbshell -> danger dbshell
coverage run -m timeit x -> danger -m
go run github.com/x/y@latest -> danger github.com/x/y@latest
go install x.com/y@v1 -> danger x.com/y@v1
"""


class TestTables(Tables):
    """What stands in `EVERYDAY` and `FOUND`."""
