package templates

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/examples/notification/notice"
)

func example(template, locale string) notice.Notice {
	return notice.Notice{
		Purpose: VerifyEmail, Template: template, Locale: locale, To: "ada+x@example.com", Token: "abc_-123",
		Expires: time.Unix(1793000000, 0),
	}
}

func TestRender(t *testing.T) {
	t.Parallel()
	got, err := Render(example("verify_email@2", "en"))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"to":"ada+x@example.com","subject":"Confirm your address","text":"Your code is abc_-123\n"}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// A template that was in use must not change: a provider would refuse the same
// key with other bytes. A new version gets a new row; none of these changes.
func TestVersionsInUseStayAsTheyAre(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ template, locale, digest string }{
		{"verify_email@2", "en", "f8f376588a7b3d68e23509e78fac719688746d40967ddde7e16cbf9193747495"},
		{"verify_email@2", "de", "f8f376588a7b3d68e23509e78fac719688746d40967ddde7e16cbf9193747495"}, // has English only
		{"verify_email@3", "en", "f1ebfcfb04509717fcc9056ffab0545c7ebee3161bd039e1fbb56b4f17dbaed2"},
		{"verify_email@3", "de", "1b84337d3f6901eafbd23981236be81a67ca5703d321eeed22138ab766720da4"},
		{"verify_email@3", "fr", "f1ebfcfb04509717fcc9056ffab0545c7ebee3161bd039e1fbb56b4f17dbaed2"},
	} {
		t.Run(tc.template+" "+tc.locale, func(t *testing.T) {
			t.Parallel()
			body, err := Render(example(tc.template, tc.locale))
			if err != nil {
				t.Fatal(err)
			}
			digest := sha256.Sum256(body)
			if got := hex.EncodeToString(digest[:]); got != tc.digest {
				t.Errorf("digest %s, want %s, of %s", got, tc.digest, body)
			}
		})
	}
}

func TestUnknownTemplates(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, template, purpose string }{
		{"unknown version", "verify_email@9", VerifyEmail},
		{"no version", "verify_email", VerifyEmail},
		{"of another purpose", "verify_email@3", "reset_password"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := example(tc.template, "en")
			n.Purpose = tc.purpose
			if body, err := Render(n); !errors.Is(err, ErrTemplate) {
				t.Errorf("rendered %q, error %v", body, err)
			}
		})
	}
}

func TestCurrentIsKnown(t *testing.T) {
	t.Parallel()
	if _, err := Render(example(Current, "en")); err != nil {
		t.Error(err)
	}
}
