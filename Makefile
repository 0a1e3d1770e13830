.DEFAULT_GOAL := help
SHELL := bash
stack := scripts/dev/stack.sh

##@ Servers
.PHONY: dev-up dev-down dev-env dev-status
dev-up: ## install and start PostgreSQL 15 and 18 and Kafka (PG="16 17": these as well)
	@$(stack) up $(if $(PG),pg15 pg18 kafka $(PG:%=pg%))
dev-down: ## stop them; the data stays
	@$(stack) down
dev-env: ## how to reach them: eval "$(make -s dev-env)"
	@$(stack) env
dev-status: ## what runs, where
	@$(stack) status
