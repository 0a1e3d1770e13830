package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/examples/notification/users"
)

// partitions of a topic that setup makes.
const partitions = 4

// setup makes the example's own table and its topics. The outbox is made by
// cdc-relay init.
func setup(ctx context.Context, e *env) error {
	address, servers, names := e.required(dsn), e.requiredList(brokers), list(e.or(topics, defaultTopic))
	if err := e.err(); err != nil {
		return err
	}
	if err := makeTable(ctx, address); err != nil {
		return err
	}
	return makeTopics(ctx, servers, names)
}

func makeTable(ctx context.Context, address string) error {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return fmt.Errorf("connecting to the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, users.Schema); err != nil {
		return fmt.Errorf("making the table of users: %w", err)
	}
	return nil
}

func makeTopics(ctx context.Context, servers, names []string) error {
	request := &kafka.CreateTopicsRequest{Addr: kafka.TCP(servers...)}
	for _, name := range names {
		request.Topics = append(request.Topics, kafka.TopicConfig{Topic: name, NumPartitions: partitions, ReplicationFactor: 1})
	}
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	answer, err := (&kafka.Client{Transport: transport}).CreateTopics(ctx, request)
	if err != nil {
		return fmt.Errorf("making the topics: %w", err)
	}
	for name, err := range answer.Errors {
		if err != nil && !errors.Is(err, kafka.TopicAlreadyExists) {
			return fmt.Errorf("making topic %s: %w", name, err)
		}
	}
	return nil
}
