package outbox_test

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"net/url"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/migrations"
)

// exampleServer names the variable with the server on which the examples run.
const exampleServer = "CDC_TEST_PG18_DSN"

// TestMain gives the examples, which cannot skip themselves and have no
// testing.T, a database at DATABASE_URL, or keeps them from running where
// there is no server.
func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx := context.Background()
	admin := os.Getenv(exampleServer)
	if admin == "" {
		if os.Getenv("CDC_TEST_REQUIRE") == "1" {
			fmt.Fprintln(os.Stderr, exampleServer+" is not set: make dev-up starts the servers, make dev-env prints the variables")
			return 1
		}
		fmt.Println(exampleServer + " is not set: the examples do not run")
		skip := "^Example"
		if asked := flag.Lookup("test.skip").Value.String(); asked != "" {
			skip += "|" + asked
		}
		if err := flag.Set("test.skip", skip); err != nil {
			fmt.Fprintln(os.Stderr, "skipping the examples:", err)
			return 1
		}
		return m.Run()
	}
	name := "cdc_example_" + rand.Text()[:12]
	dsn, err := exampleDatabase(ctx, admin, name)
	if err != nil {
		fmt.Fprintln(os.Stderr, "making the examples' database:", err)
		return 1
	}
	os.Setenv("DATABASE_URL", dsn)
	code := m.Run()
	if err := execute(ctx, admin, "DROP DATABASE "+quote(name)+" WITH (FORCE)"); err != nil {
		fmt.Fprintln(os.Stderr, "dropping the examples' database:", err)
		return 1
	}
	return code
}

func exampleDatabase(ctx context.Context, admin, name string) (dsn string, err error) {
	u, err := url.Parse(admin)
	if err != nil {
		return "", fmt.Errorf("%s is no URL", exampleServer) // it may hold a password
	}
	if err := execute(ctx, admin, "CREATE DATABASE "+quote(name)+" TEMPLATE template0"); err != nil {
		return "", err
	}
	u.Path = "/" + name
	conf, err := pgx.ParseConfig(u.String())
	if err != nil {
		return "", err
	}
	if _, err := migrations.Up(ctx, conf, "public"); err != nil {
		return "", err
	}
	return u.String(), execute(ctx, u.String(), "CREATE TABLE orders (id text PRIMARY KEY, state text NOT NULL)")
}

func execute(ctx context.Context, dsn, sql string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
