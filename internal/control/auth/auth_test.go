package auth_test

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/auth"
	"github.com/cayhq/cay/internal/control/store/sqlite"
)

func open(t *testing.T) (*auth.Auth, *sqlite.Store) {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "cay.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return auth.New(s), s
}

func bootstrap(t *testing.T, a *auth.Auth, secret string) string {
	t.Helper()
	got, _, err := a.EnsureBootstrap(t.Context(), secret)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func identify(t *testing.T, a *auth.Auth, secret string) cay.Identity {
	t.Helper()
	id, err := a.Key(t.Context(), secret)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func refused(t *testing.T, err error) {
	t.Helper()
	if cay.ReasonOf(err) != cay.Unauthorized {
		t.Fatalf("got %v, want unauthorized", err)
	}
}

func TestTheFirstStartMakesAnAdminKeyAndLaterOnesKeepIt(t *testing.T) {
	a, s := open(t)
	secret, created, err := a.EnsureBootstrap(t.Context(), "")
	if err != nil || !created || !auth.ValidSecret(secret) {
		t.Fatalf("first start: %q, %v, %v", secret, created, err)
	}
	if id := identify(t, a, secret); !id.May(cay.ScopeJobs) {
		t.Errorf("the bootstrap key is no admin: %+v", id)
	}
	later := auth.New(s)
	if got, created, err := later.EnsureBootstrap(t.Context(), ""); err != nil || created || got != "" {
		t.Errorf("a later start without a secret: %q, %v, %v", got, created, err)
	}
	if got, created, err := later.EnsureBootstrap(t.Context(), secret); err != nil || created || got != secret {
		t.Errorf("a later start with the kept secret: %q, %v, %v", got, created, err)
	}
	identify(t, later, secret)
}

func TestAChangedBootstrapKeyReplacesTheOldOneBothWays(t *testing.T) {
	a, _ := open(t)
	one, two := auth.NewSecret(), auth.NewSecret()
	bootstrap(t, a, one)
	identify(t, a, one)
	bootstrap(t, a, two)
	identify(t, a, two)
	_, err := a.Key(t.Context(), one)
	refused(t, err)
	bootstrap(t, a, one)
	identify(t, a, one)
}

func TestABootstrapKeyOfAnotherFormOrARevokedOneIsRefused(t *testing.T) {
	a, _ := open(t)
	for _, bad := range []string{"x", "cay_12", "cay_" + strings.Repeat("A", 64), "cay_" + strings.Repeat("a", 64) + "\n"} {
		if _, _, err := a.EnsureBootstrap(t.Context(), bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	secret := bootstrap(t, a, "")
	id := identify(t, a, secret)
	if err := a.RevokeKey(t.Context(), id.ProjectID, id.KeyID); err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.EnsureBootstrap(t.Context(), secret); err == nil {
		t.Error("a revoked key was put into force again")
	}
	bootstrap(t, a, auth.NewSecret())
}

func TestSecretsThatAreNoKeysAreUnauthorized(t *testing.T) {
	a, _ := open(t)
	bootstrap(t, a, "")
	for _, secret := range []string{"", "cay_", auth.NewSecret(), "Bearer", strings.Repeat("x", 1<<16)} {
		_, err := a.Key(t.Context(), secret)
		refused(t, err)
	}
}

func TestARevokedKeyEndsAtOnceWithItsTickets(t *testing.T) {
	a, _ := open(t)
	admin := identify(t, a, bootstrap(t, a, ""))
	k, secret, err := a.CreateKey(t.Context(), admin.ProjectID, "ci", []cay.Scope{cay.ScopeExec}, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	id := identify(t, a, secret)
	if id.May(cay.ScopeFiles) || !id.May(cay.ScopeExec) {
		t.Errorf("scopes %v", id.Scopes)
	}
	ticket, _, err := a.MintTicket(t.Context(), id, "GET", "/v1/x")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.RevokeKey(t.Context(), admin.ProjectID, k.ID); err != nil {
		t.Fatal(err)
	}
	_, err = a.Key(t.Context(), secret)
	refused(t, err)
	_, err = a.RedeemTicket(t.Context(), ticket, "GET", "/v1/x")
	refused(t, err)
	keys, err := a.Keys(t.Context(), admin.ProjectID)
	if err != nil || len(keys) != 2 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
}

func TestAKeyEndsWithItsExpiryAlsoWhileItIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := open(t)
		admin := identify(t, a, bootstrap(t, a, ""))
		_, secret, err := a.CreateKey(t.Context(), admin.ProjectID, "short", []cay.Scope{cay.ScopeExec}, time.Now().Add(5*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		identify(t, a, secret)
		time.Sleep(5 * time.Second)
		_, err = a.Key(t.Context(), secret)
		refused(t, err)
	})
}

func TestAKeyThatAnotherServerRevokedEndsWithinTheMemoryOfThisOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := open(t)
		secret := bootstrap(t, a, "")
		id := identify(t, a, secret)
		if err := auth.New(s).RevokeKey(t.Context(), id.ProjectID, id.KeyID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Second)
		_, err := a.Key(t.Context(), secret)
		refused(t, err)
	})
}

func TestKeysAreCheckedWhenTheyAreMade(t *testing.T) {
	a, _ := open(t)
	project := identify(t, a, bootstrap(t, a, "")).ProjectID
	for field, make := range map[string]func() error{
		"name": func() error {
			_, _, err := a.CreateKey(t.Context(), project, auth.BootstrapName, []cay.Scope{cay.ScopeExec}, time.Time{})
			return err
		},
		"scopes": func() error {
			_, _, err := a.CreateKey(t.Context(), project, "k", []cay.Scope{"everything"}, time.Time{})
			return err
		},
		"expires_at": func() error {
			_, _, err := a.CreateKey(t.Context(), project, "k", []cay.Scope{cay.ScopeExec}, time.Now().Add(-time.Hour))
			return err
		},
	} {
		e, ok := make().(*cay.Error)
		if !ok || e.Field != field {
			t.Errorf("%s: got %v", field, e)
		}
	}
	if _, err := a.CreateProject(t.Context(), "default"); cay.ReasonOf(err) != cay.AlreadyExists {
		t.Errorf("a second default project: %v", err)
	}
	if _, _, err := a.CreateKey(t.Context(), cay.NewID(cay.PrefixProject), "k", []cay.Scope{cay.ScopeExec}, time.Time{}); cay.ReasonOf(err) != cay.NotFound {
		t.Errorf("a key of no project: %v", err)
	}
}

func TestATicketIsGoodOnceAndForItsRequestOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := open(t)
		id := identify(t, a, bootstrap(t, a, ""))
		mint := func() string {
			ticket, expires, err := a.MintTicket(t.Context(), id, "GET", "/v1/x?a=1")
			if err != nil || time.Until(expires) != auth.TicketPeriod {
				t.Fatal(expires, err)
			}
			return ticket
		}
		ticket := mint()
		var good atomic.Int64
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if got, err := a.RedeemTicket(context.Background(), ticket, "GET", "/v1/x?a=1"); err == nil && got.KeyID == id.KeyID {
					good.Add(1)
				}
			})
		}
		wg.Wait()
		if good.Load() != 1 {
			t.Errorf("the ticket was good %d times", good.Load())
		}
		for _, other := range [][2]string{{"POST", "/v1/x?a=1"}, {"GET", "/v1/x?a=2"}, {"GET", "/v1/x"}} {
			_, err := a.RedeemTicket(t.Context(), mint(), other[0], other[1])
			refused(t, err)
		}
		late := mint()
		time.Sleep(auth.TicketPeriod)
		_, err := a.RedeemTicket(t.Context(), late, "GET", "/v1/x?a=1")
		refused(t, err)
	})
}
