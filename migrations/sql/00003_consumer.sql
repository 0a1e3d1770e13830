-- What the consumer kit keeps beside the outbox: see package consumer/tables, which has the same for a consumer's own
-- database.

-- +goose Up
{{consumer}}
