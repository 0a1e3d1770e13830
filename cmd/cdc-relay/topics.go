package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/operate"
	"github.com/cdc-relay/cdc-relay/internal/pg"
)

func (a *app) topicsCommand() *cobra.Command {
	return group(&cobra.Command{Use: "topics", Short: "Show and change how many partitions keys are spread over"},
		a.topicsListCommand(), a.topicsRepinCommand())
}

// topicItem is a topic as it is shown.
type topicItem struct {
	Topic     string         `json:"topic"`
	Pinned    int            `json:"pinned"`  // partitions that keys are spread over
	Present   *int           `json:"present"` // in Kafka; null: not there, or not known
	Wanted    *int           `json:"wanted"`  // what the leader is to switch to; null: nothing
	ChangedAt operate.Moment `json:"changed_at"`
}

// newTopicItem shows a topic; present holds what Kafka tells.
func newTopicItem(t operate.Topic, present map[string]int) topicItem {
	item := topicItem{Topic: t.Name, Pinned: t.Pinned, ChangedAt: t.ChangedAt}
	if n, ok := present[t.Name]; ok {
		item.Present = &n
	}
	if t.Wanted != 0 {
		item.Wanted = &t.Wanted
	}
	return item
}

var topicHeader = []string{"TOPIC", "PINNED", "PRESENT", "WANTED", "CHANGED_AT"}

func (t *topicItem) cells(at time.Time) []string {
	return []string{cell(t.Topic), strconv.Itoa(t.Pinned), countText(t.Present), countText(t.Wanted), momentText(t.ChangedAt, at)}
}

func countText(n *int) string {
	if n == nil {
		return "-"
	}
	return strconv.Itoa(*n)
}

func (a *app) topicsListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the topics with their pinned and present partition counts",
		Long: "List the topics that events were published to: over how many partitions keys are\n" +
			"spread (pinned), how many there are in Kafka (present), and what the leader was asked\n" +
			"to switch to (wanted). A topic whose counts differ can be repinned.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withTopics(cmd, func(ctx context.Context, c *config.Config, topics *operate.Topics) error {
				list, err := topics.List(ctx)
				if err != nil {
					return err
				}
				present, err := presentPartitions(ctx, c, list)
				if err != nil {
					a.warn([]string{"present counts are not known: " + oneLine(err.Error())})
				}
				return a.printTopics(c, list, present)
			})
		},
	}
}

func (a *app) printTopics(c *config.Config, list []operate.Topic, present map[string]int) error {
	items := make([]topicItem, len(list))
	rows := make([][]string, len(list))
	for i, t := range list {
		items[i] = newTopicItem(t, present)
		rows[i] = items[i].cells(time.Now())
	}
	return a.printItems(c.Pipeline, items, topicHeader, rows)
}

// withTopics runs a command on the pinned partition counts.
func (a *app) withTopics(cmd *cobra.Command, run func(context.Context, *config.Config, *operate.Topics) error) error {
	return a.withDatabase(cmd, func(ctx context.Context, c *config.Config) error {
		conn, _, err := connectSQL(ctx, c)
		if err != nil {
			return err
		}
		defer pg.Close(conn)
		return run(ctx, c, operate.NewTopics(conn, pg.Table(c.Outbox.Table), person()))
	})
}

// kafkaPatience bounds the question to Kafka: the database's answer is shown
// without it.
const kafkaPatience = 10 * time.Second

// presentPartitions asks Kafka about these topics.
func presentPartitions(ctx context.Context, c *config.Config, list []operate.Topic) (map[string]int, error) {
	names := make([]string, len(list))
	for i, t := range list {
		names[i] = t.Name
	}
	client, end, err := kafkaClient(c)
	if err != nil {
		return nil, err
	}
	defer end()
	ctx, cancel := context.WithTimeout(ctx, kafkaPatience)
	defer cancel()
	present, err := operate.Partitions(ctx, client, names)
	if err != nil {
		return nil, fmt.Errorf("no Kafka broker answers; check kafka.brokers, kafka.tls and kafka.sasl, and whether they run: %w", err)
	}
	return present, nil
}

func (a *app) topicsRepinCommand() *cobra.Command {
	var confirm int
	var dryRun bool
	var reason string
	cmd := &cobra.Command{
		Use:   "repin TOPIC --confirm N",
		Short: "Spread the keys of a topic over the partitions that it has now",
		Long: "Spread the keys of a topic over all partitions that it has now. N must be their number.\n" +
			"The leader lets what is under way to the topic end, then switches. Most keys move to\n" +
			"another partition: a consumer may see a later event of a key in the new one before it\n" +
			"has come to the earlier ones in the old one.\n" +
			"Without --confirm nothing is changed: what would happen is shown.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkReason(reason, false); err != nil {
				return err
			}
			return a.withTopics(cmd, func(ctx context.Context, c *config.Config, topics *operate.Topics) error {
				return a.repin(ctx, c, topics, repinOrder{args[0], confirm, cmd.Flags().Changed("confirm"), dryRun, reason})
			})
		},
	}
	cmd.Flags().IntVar(&confirm, "confirm", 0, "`number` of partitions that the topic has now")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show what would happen, change nothing")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit trail")
	return cmd
}

// repinOrder is what a person asked for.
type repinOrder struct {
	topic     string
	confirm   int
	confirmed bool // confirm was given
	dryRun    bool
	reason    string
}

func (a *app) repin(ctx context.Context, c *config.Config, topics *operate.Topics, order repinOrder) error {
	topic, present, err := repinnable(ctx, c, topics, order.topic)
	if err != nil {
		return err
	}
	switch {
	case topic.Pinned == present && topic.Wanted == 0:
		return a.printRepin(c, topic, present, repinNeedless)
	case order.dryRun:
		return a.printRepin(c, topic, present, repinPossible)
	case !order.confirmed:
		return errors.Join(a.printRepin(c, topic, present, repinPossible),
			refused("nothing was changed; to do it, run: cdc-relay topics repin %s --confirm %d", printable(topic.Name), present))
	case order.confirm != present:
		return refused("topic %s has %d partitions, not %d: nothing was changed", printable(topic.Name), present, order.confirm)
	}
	if err := topics.Repin(ctx, topic, present, order.reason); err != nil {
		return err
	}
	topic.Wanted = present
	return a.printRepin(c, topic, present, repinDone)
}

// repinnable finds a topic and the number of partitions that it has now.
func repinnable(ctx context.Context, c *config.Config, topics *operate.Topics, name string) (operate.Topic, int, error) {
	list, err := topics.List(ctx)
	if err != nil {
		return operate.Topic{}, 0, err
	}
	for _, topic := range list {
		if topic.Name != name {
			continue
		}
		present, err := presentPartitions(ctx, c, []operate.Topic{topic})
		if err != nil {
			return operate.Topic{}, 0, err
		}
		if present[name] == 0 {
			return operate.Topic{}, 0, notFound("Kafka has no topic %s, or this login may not see it; create it, or grant DESCRIBE on it", printable(name))
		}
		return topic, present[name], nil
	}
	return operate.Topic{}, 0, notFound("topic %s is not pinned: nothing was published to it yet; cdc-relay topics list shows those that are", printable(name))
}

// What becomes of a repin; part of the JSON contract.
const (
	repinDone     = "repinned"
	repinPossible = "would_repin"
	repinNeedless = "nothing_to_do"
)

// repinAnswer is the answer as JSON.
type repinAnswer struct {
	envelope
	Result string `json:"result"`
	topicItem
}

func (a *app) printRepin(c *config.Config, topic operate.Topic, present int, result string) error {
	item := newTopicItem(topic, map[string]int{topic.Name: present})
	const effect = "once the leader has drained the topic, its keys are spread over %d partitions instead of %d;\n" +
		"most keys move: let consumers catch up if they must not see a later event of a key first\n"
	text := map[string]string{
		repinDone:     fmt.Sprintf("topic %s is to be repinned: "+effect, printable(topic.Name), present, topic.Pinned),
		repinPossible: fmt.Sprintf("topic %s can be repinned: "+effect, printable(topic.Name), present, topic.Pinned),
		repinNeedless: fmt.Sprintf("topic %s has the %d partitions that its keys are spread over: nothing to do\n", printable(topic.Name), present),
	}[result]
	answer := repinAnswer{newEnvelope(c.Pipeline, time.Now().UTC()), result, item}
	return a.print(answer, func(w io.Writer) { fmt.Fprint(w, text) })
}
