"""Package managers: plain names are everyday, other sources and settings are not."""

from __future__ import annotations

import pytest

from unit.policy.commands.opening import Tables

pytestmark = pytest.mark.requirement("POL-2", "POL-3")

EVERYDAY = r"""
pip install requests
pip install -r requirements.txt
pip install -e .
pip install -e '.[dev]'
pip install -U pip
pip install 'requests>=2'
pip list
pip freeze
pip show x
pip uninstall -y x
uv sync
uv run pytest -q
uv run python x.py
uv add requests
uv pip install -r r.txt
uv pip install -e .
uv lock
uvx ruff check
uv run --frozen ruff check .
poetry run pytest
poetry install
pipx run black .
npm install
npm i
npm ci
npm install lodash
npm install --save-dev jest @types/node
npm i -g typescript
npm run build
npm run build -- --watch
npm test
npm test -- --coverage
npm start
npm ls
npm outdated
npm audit
npm view react version
npm --prefix web run build
npm version patch
npx tsc --noEmit
npx eslint .
npx -y prettier --check .
npx --no-install jest
yarn
yarn install --frozen-lockfile
yarn add react
yarn build
yarn test
pnpm install
pnpm -r build
pnpm add -D vitest
bundle exec rspec
bundle install
gem install rails
composer install
apt-get install -y jq
brew install jq
conda run -n x python y.py
uv run x.py
conda install -c conda-forge numpy
npm test -- --watch
npm run dev
uv sync --all-extras
uv lock --upgrade
bundle exec rake test
npx create-react-app x
npm pkg get version
npm --prefix web pkg get name version
uv tool list
uv tool install ruff
pip install -r requirements.txt -c constraints.txt
pip install -r ./dev/requirements.txt
pnpm exec tsc
"""

FOUND = r"""
uv run --with requests python x.py -> danger --with | inner python x.py
pip uninstall -y -r.env -> read .env
pip cache dir --cache-dir=../x -> write ../x
pip --keyring-provider=subprocess install x -> danger --keyring-provider
uv export -o ../x -> write ../x
uv venv ../x -> write ../x
uv init ../x -> write ../x
uv run --python /tmp/x y.py -> danger --python | inner python y.py
npm pack --pack-destination=../.. -> write ../..
pnpm recursive exec id -> danger recursive
pnpm m exec id -> danger m
yarn workspace a exec id -> inner yarn exec id
yarn workspaces foreach exec id -> danger foreach
yarn workspaces run id -> inner id
uv run rm x -> inner rm x
uv run bash -c 'rm x' -> inner bash -c rm x
uvx --from git+https://x y -> danger --from
npx -c 'rm x' -> script rm x
npx bash -c 'rm x' -> inner bash -c rm x
npx --package=https://evil x -> danger --package
npm exec -c 'rm' -> danger exec | script rm
npm exec -- bash -c x -> danger exec | inner bash -c x
npm exec -- tsc --noEmit -> danger exec | inner tsc --noEmit
npm exec create-x -> danger exec
npm x -y create-x -> danger x
npm --prefix web exec create-x -> danger exec
npm exec --package=https://x y -> danger --package | danger exec
pnpm dlx create-x -> danger dlx
pnpm dlx sh -c rm -> danger dlx | inner sh -c rm
yarn dlx create-x -> danger dlx
yarn dlx -p https://x y -> danger -p | danger dlx
uv tool run ruff check -> danger run | inner ruff check
uv tool run x -> danger run
uv tool run --from git+https://x y -> danger --from | danger run
uv tool install git+https://x -> danger git+https://x
pnpm bash -c x -> inner bash -c x
pnpm exec rm -> inner rm
poetry run rm x -> inner rm x
conda run -n x rm -> inner rm
nix-shell --run 'rm x' -> script rm x
pip install git+https://x -> danger git+https://x
pip install -r r.txt -c c.txt -> read c.txt | read r.txt
pip install -r https://x/r.txt -> danger -r
pip install -rhttps://x/r.txt -> danger -r
pip install --requirement=https://x -> danger --requirement
pip install --req https://x -> danger --req
pip install -r file:///x -> danger -r
pip install -r - -> danger -r
pip install -r /dev/stdin -> danger -r
pip install -r /dev/fd/63 -> danger -r
pip install -r /proc/self/fd/0 -> danger -r
pip install -c https://x y -> danger -c
pip install --constraint /dev/stdin y -> danger --constraint
pip download -r https://x -> danger -r
python -m pip install -r https://x -> danger -r
pip install --index-url http://x y -> danger --index-url
pip install -i http://x y -> danger -i
pip install --extra-index-url=http://x y -> danger --extra-index-url
pip install --find-links x y -> danger --find-links
pip install --trusted-host x y -> danger --trusted-host
pip install https://x/y.whl -> danger https://x/y.whl
pip install /tmp/x -> danger /tmp/x
pip install --global-option=x y -> danger --global-option
pip install --config-settings x=y z -> danger --config-settings
pip install --target / x -> danger --target
pip install 'x @ git+https://y' -> danger x @ git+https://y
pip install --index http://x y -> danger --index
pip config set x y -> danger set | write .config/pip/pip.conf
npm install https://x -> danger https://x
npm install git+ssh://x -> danger git+ssh://x
npm install --registry=http://x y -> danger --registry
npm install --script-shell=/x -> danger --script-shell
npm config set script-shell /x -> danger set | write .npmrc
npm set x y -> danger x | write .npmrc
npm init evil -> danger evil
npm run x --script-shell /y -> danger --script-shell
npm i user/repo -> danger user/repo
npm pkg set scripts.x=y -> danger set
npm pkg delete scripts.x -> danger delete
npm pkg fix -> danger fix
npm pkg @u -> danger | danger
yarn config set x y -> danger set | write .yarnrc.yml
yarn create x -> danger x
gem install -s http://x y -> danger -s
dpkg -i x.deb -> danger -i
apt-get install -o Dpkg::Pre-Invoke::=rm x -> danger -o
apt -o APT::Update::Pre-Invoke::=rm update -> danger -o
bundle exec rm x -> inner rm x
uv pip install --index-url x y -> danger --index-url
poetry config x y -> danger config
composer exec x -> danger exec
npm test --script-shell=/x -> danger --script-shell
npm start --node-options=--require=/x -> danger --node-options
npm ls --registry http://x -> danger --registry
uv sync --index-url http://x -> danger --index-url
uv lock --default-index=http://x -> danger --default-index
pip list --python /x -> danger --python
npm run env -- rm x -> danger env
pipx run https://x/y.py -> danger https://x/y.py
npx user/repo -> danger user/repo
brew install https://x/y.rb -> danger https://x/y.rb
apt install ./x.deb -> danger ./x.deb
"""


class TestTables(Tables):
    """What stands in `EVERYDAY` and `FOUND`."""
