# Every target is one command in scripts/ or one go command; `make` alone lists them.

.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

stack := scripts/dev/stack.sh
with_stack := scripts/dev/with-stack.sh
# what tests need on the machine; of PostgreSQL 17 no server runs, as tests start clusters of it themselves
programs := pg15 pg17 pg18 kafka

##@ Start here
.PHONY: help demo
help: ## print this list
	@awk -F ':.*## ' '/^##@/ { printf "\n%s\n", substr($$0, 5) } /^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile
	@echo
demo: ## rows through the whole line on real servers, with a report
	@scripts/demo.sh

##@ Build and test
.PHONY: build lint test-unit test chaos sim bench
build: ## build bin/cdc-relay, a static binary
	CGO_ENABLED=0 go build -trimpath -buildvcs=auto -o bin/cdc-relay ./cmd/cdc-relay
lint: ## format, vet, staticcheck, import table, shell scripts
	@scripts/lint.sh
test-unit: ## all tests that need no server, in under a minute
	@scripts/test.sh unit
test: lint ## everything, with the race detector, on real PostgreSQL 15 and 18 and Kafka, failovers on 17 too
	@$(stack) install $(programs)
	@$(with_stack) pg15 pg18 kafka -- scripts/test.sh all
chaos: ## kill the relay at every step of the line again and again, then check that nothing is lost (N=100)
	@$(with_stack) pg15 pg18 kafka -- env CDC_TEST_REQUIRE=1 \
		go test -race -count=1 -timeout 3h -v -run '^TestKilledAtEveryStep$$' ./e2e -rounds=$(or $(N),100)
sim: ## run relay and consumers through random programs of faults in simulated time, beside plain models (SEEDS=8000 of them, SEED= to repeat)
	@go test -count=1 -timeout 12h -v -run '^TestModel$$' ./internal/relay ./consumer -rapid.nofailfile \
		-rapid.checks=$$(($(or $(SEEDS),8000) / 8)) $(if $(SEED),-rapid.seed=$(SEED))
bench: build ## how fast the relay drains a backlog, beside what PostgreSQL alone can do (ARGS=...)
	@$(with_stack) pg18 kafka -- go run ./bench $(ARGS)

##@ Servers to work against (PostgreSQL 15 and 18, Kafka; PG="16 17" adds those)
.PHONY: dev-up dev-down dev-env dev-status
dev-up: ## install what is missing and start them
	@$(stack) install $(programs)
	@$(stack) up $(if $(PG),pg15 pg18 kafka $(PG:%=pg%))
dev-down: ## stop them; their data stays
	@$(stack) down
dev-env: ## how to reach them: eval "$(make dev-env)"
	@$(stack) env
dev-status: ## what runs, and where its log is
	@$(stack) status

##@ Other
.PHONY: clean
clean: ## stop the servers, delete their data and everything that was built
	@$(stack) wipe
	rm -rf bin
