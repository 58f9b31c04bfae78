# Millrace: the main targets are `make run` and `make test`; most other targets are parts of them.

LISTEN ?= 127.0.0.1:8080
CARS ?= 12
SEED ?= 7
BINDIR ?= $(or $(CARGO_HOME),$(HOME)/.cargo)/bin
export CARGO_TARGET_DIR ?= $(CURDIR)/target
BIN := $(CARGO_TARGET_DIR)/debug/millrace
WEB_SOURCES := $(shell find web/src web/public web/scripts web/*.html web/*.json web/*.ts web/*.js sdk/typescript/src sdk/typescript/*.json -type f 2>/dev/null)

# Pages of the documentation: docs/.vitepress/pages.mjs lists them.
DOCS_SOURCES := $(shell find docs -name node_modules -prune -o -path docs/.vitepress/dist -prune -o -path docs/.vitepress/cache -prune -o -type f -print) \
	$(wildcard *.md */README.md) sdk/typescript/README.md

.PHONY: help run install test quick check fmt bench lab instructions sbom teeth build firmware board web docs sdk setup clean screenshots

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 24

run: build ## build, serve on LISTEN (127.0.0.1:8080) and simulate CARS (12) cars; FLAGS go to the server
	@scripts/run.sh $(BIN) $(LISTEN) $(CARS) $(SEED) $(FLAGS)

install: build ## copy the millrace binary to BINDIR (~/.cargo/bin)
	install -D -m 755 $(BIN) $(BINDIR)/millrace
	@case ":$$PATH:" in *":$(BINDIR):"*) ;; *) echo "$(BINDIR) is not on the PATH: export PATH=\"$(BINDIR):\$$PATH\"" ;; esac

test: setup ## run all tests: Rust, client and pages in real browsers, lints
	@scripts/test.sh

quick: sdk/typescript/dist/.built web/node_modules/.installed ## test the parts changed since main, in about three minutes; list the skipped steps
	@node scripts/quick.mjs

check: sdk/typescript/dist/.built web/node_modules/.installed ## check formatting and lints of every language
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	node scripts/prose/prose.mjs
	cargo clippy --workspace --all-targets --locked -- -D warnings
	npm --prefix sdk/typescript run check
	npm --prefix web run check

fmt: ## format the Rust code
	cargo fmt --all
	cargo fmt --manifest-path fuzz/Cargo.toml

bench: web ## compare the cost of a delivery with rivals (needs two cores); BENCH="--build" builds rivals from source
	cargo bench -p millrace-cli --bench rivals -- $(BENCH)

lab: build ## run every scenario of the lab in its quick form
	@scripts/lab-quick.sh $(BIN)

instructions: ## compare instructions per message of the core (callgrind) with the recorded counts
	@scripts/instructions.sh

sbom: web/node_modules/.installed ## write the bill of materials (CycloneDX) of binary, client and pages to target/sbom
	node scripts/sbom.mjs $(CARGO_TARGET_DIR)/sbom

teeth: ## check that the tests of docs/explanation/security.md fail without their defense; takes a quarter of an hour
	@scripts/security-teeth.sh

build: web ## build the binary with its pages
	cargo build -p millrace-cli --locked

firmware: ## build the firmware of the LED module for MSP430 and AVR to target/firmware (needs clang, lld, avr-gcc)
	$(MAKE) --no-print-directory -C firmware/led-module msp430 avr OUT=$(CARGO_TARGET_DIR)/firmware

board: ## check the board of the LED module with KiCad; write Gerber files, parts and pictures to target/board
	hw/led-module/board.sh

web: web/pack/manifest.json ## build the pages and the documentation for the binary

docs: docs/.vitepress/dist/.built ## build the site of the documentation

sdk: sdk/typescript/dist/.built ## build the TypeScript client

screenshots: build ## take the screenshots of the README
	MILLRACE_BIN=$(BIN) npm --prefix web run screenshots

setup: ## install missing Debian packages that the tests need, such as browsers
	@scripts/setup.sh

clean: ## remove build results
	rm -rf target sdk/typescript/dist sdk/typescript/node_modules web/dist web/pack web/single web/node_modules docs/.vitepress/dist docs/.vitepress/cache docs/node_modules

# --- files -----------------------------------------------------------------------------------------------------------

export PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD := 1
NPM_CI := npm ci --no-audit --no-fund --loglevel=error

sdk/typescript/node_modules/.installed: sdk/typescript/package-lock.json
	$(NPM_CI) --prefix sdk/typescript
	@touch $@

sdk/typescript/dist/.built: sdk/typescript/node_modules/.installed $(shell find sdk/typescript/src -type f 2>/dev/null) sdk/typescript/tsconfig.json sdk/typescript/tsconfig.build.json
	npm --prefix sdk/typescript run --silent build
	@touch $@

web/node_modules/.installed: web/package-lock.json sdk/typescript/dist/.built
	$(NPM_CI) --prefix web
	@touch $@

docs/node_modules/.installed: docs/package-lock.json
	$(NPM_CI) --prefix docs
	@touch $@

docs/.vitepress/dist/.built: docs/node_modules/.installed $(DOCS_SOURCES)
	npm --prefix docs run --silent build
	@touch $@

web/pack/manifest.json: web/node_modules/.installed docs/.vitepress/dist/.built $(WEB_SOURCES)
	npm --prefix web run --silent build
