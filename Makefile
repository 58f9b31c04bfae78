# Millrace: two commands, `make run` and `make test`; the rest are their parts.
# Each recipe is a line you could type.

LISTEN ?= 127.0.0.1:8080
CARS ?= 12
SEED ?= 7
BINDIR ?= $(or $(CARGO_HOME),$(HOME)/.cargo)/bin
export CARGO_TARGET_DIR ?= $(CURDIR)/target
BIN := $(CARGO_TARGET_DIR)/debug/millrace
WEB_SOURCES := $(shell find web/src web/public web/scripts web/*.html web/*.json web/*.ts web/*.js sdk/src sdk/*.json -type f 2>/dev/null)

.PHONY: help run install test quick check fmt bench lab instructions sbom teeth build web sdk setup clean screenshots

help: ## list what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 24

run: build ## build all, serve on LISTEN (127.0.0.1:8080) with a fleet of CARS (12); FLAGS for the server
	@scripts/run.sh $(BIN) $(LISTEN) $(CARS) $(SEED) $(FLAGS)

install: build ## copy the built millrace to BINDIR (~/.cargo/bin)
	install -D -m 755 $(BIN) $(BINDIR)/millrace
	@case ":$$PATH:" in *":$(BINDIR):"*) ;; *) echo "$(BINDIR) is not on the PATH: export PATH=\"$(BINDIR):\$$PATH\"" ;; esac

test: setup ## everything: Rust, client in Node and Chromium, pages in Chromium, lints
	@scripts/test.sh

quick: sdk/dist/.built web/node_modules/.installed ## what a change since main touches, in about three minutes; says what it leaves out
	@node scripts/quick.mjs

check: sdk/dist/.built web/node_modules/.installed ## formatting and lints of every language
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	npm --prefix sdk run check
	npm --prefix web run check

fmt: ## format the Rust code
	cargo fmt --all
	cargo fmt --manifest-path fuzz/Cargo.toml

bench: web ## what a delivery costs on one core, beside rivals (needs two cores); BENCH="--build" builds those that come as source
	cargo bench -p millrace-cli --bench rivals -- $(BENCH)

lab: build ## every scenario of the lab in its quick form, on this server
	@scripts/lab-quick.sh $(BIN)

instructions: ## what the core does per message, counted by callgrind, against what is written down
	@scripts/instructions.sh

sbom: web/node_modules/.installed ## what the binary, the client and the pages are made of (CycloneDX), into target/sbom
	node scripts/sbom.mjs $(CARGO_TARGET_DIR)/sbom

teeth: ## do the tests of docs/security.md fail when a defence is taken away? Takes a quarter of an hour
	@scripts/security-teeth.sh

build: web ## the binary, with its pages
	cargo build -p millrace-cli --locked

web: web/pack/manifest.json ## the pages, packed for the binary

sdk: sdk/dist/.built ## the TypeScript client

screenshots: build ## the pictures of the README
	MILLRACE_BIN=$(BIN) npm --prefix web run screenshots

setup: ## Debian packages that the tests need (Chromium), if they are missing
	@scripts/setup.sh

clean: ## forget what was built
	rm -rf target sdk/dist sdk/node_modules web/dist web/pack web/single web/node_modules

# --- files ---------------------------------------------------------------------------------------------------------------------------

export PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD := 1
NPM_CI := npm ci --no-audit --no-fund --loglevel=error

sdk/node_modules/.installed: sdk/package-lock.json
	$(NPM_CI) --prefix sdk
	@touch $@

sdk/dist/.built: sdk/node_modules/.installed $(shell find sdk/src -type f 2>/dev/null) sdk/tsconfig.json sdk/tsconfig.build.json
	npm --prefix sdk run --silent build
	@touch $@

web/node_modules/.installed: web/package-lock.json sdk/dist/.built
	$(NPM_CI) --prefix web
	@touch $@

web/pack/manifest.json: web/node_modules/.installed $(WEB_SOURCES)
	npm --prefix web run --silent build
