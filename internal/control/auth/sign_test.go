package auth_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/auth"
)

func signable(id cay.Identity) cay.SignedURL {
	return cay.SignedURL{
		Method: "PUT", Of: cay.NewID(cay.PrefixSandbox), Path: "/a", User: "root", MaxBytes: 1, KeyID: id.KeyID,
		ExpiresAt: time.Now().Add(time.Minute).Truncate(time.Second),
	}
}

func TestASignatureIsOfEveryFieldAndGoodOnEveryServer(t *testing.T) {
	a, s := open(t)
	id := identify(t, a, bootstrap(t, a, ""))
	u := signable(id)
	signature, err := a.SignURL(t.Context(), u)
	if err != nil {
		t.Fatal(err)
	}
	for name, server := range map[string]*auth.Auth{"this": a, "another": auth.New(s)} {
		got, err := server.VerifyURL(t.Context(), u, signature)
		if err != nil || got.KeyID != id.KeyID || got.ProjectID != id.ProjectID {
			t.Errorf("%s server: %+v, %v", name, got, err)
		}
		if got.May(cay.ScopeExec) || !got.May(cay.ScopeFiles) {
			t.Errorf("%s server: the URL has the scopes %v", name, got.Scopes)
		}
	}
	for name, change := range map[string]func(*cay.SignedURL){
		"method":                 func(u *cay.SignedURL) { u.Method = "GET" },
		"HEAD of a PUT":          func(u *cay.SignedURL) { u.Method = "HEAD" },
		"sandbox":                func(u *cay.SignedURL) { u.Of = cay.NewID(cay.PrefixSandbox) },
		"kind, a job's":          func(u *cay.SignedURL) { u.Of = cay.ID(cay.PrefixJob + u.Of.Body()) },
		"path":                   func(u *cay.SignedURL) { u.Path = "/b" },
		"user":                   func(u *cay.SignedURL) { u.User = "" },
		"bytes between fields":   func(u *cay.SignedURL) { u.Path, u.User = "/ar", "oot" },
		"bound":                  func(u *cay.SignedURL) { u.MaxBytes = 0 },
		"end":                    func(u *cay.SignedURL) { u.ExpiresAt = u.ExpiresAt.Add(time.Second) },
		"key, of another's":      func(u *cay.SignedURL) { u.KeyID = cay.NewID(cay.PrefixKey) },
		"key, moved to the path": func(u *cay.SignedURL) { u.Path, u.KeyID = u.Path+string(u.KeyID), "" },
	} {
		changed := u
		change(&changed)
		if _, err := a.VerifyURL(t.Context(), changed, signature); cay.ReasonOf(err) != cay.Unauthorized {
			t.Errorf("another %s: got %v", name, err)
		}
	}
	for _, wrong := range []string{"", signature + "A", signature[1:], strings.ToLower(signature), signature + "=", strings.Repeat("A", len(signature))} {
		_, err := a.VerifyURL(t.Context(), u, wrong)
		refused(t, err)
	}
	elsewhere, _ := open(t)
	foreign, err := elsewhere.SignURL(t.Context(), u)
	if err != nil || foreign == signature {
		t.Errorf("another installation signs the same: %v", err)
	}
}

func TestASignedURLOfAJobNeedsAndGivesTheScopeJobsAlone(t *testing.T) {
	a, _ := open(t)
	admin := identify(t, a, bootstrap(t, a, ""))
	for scope, good := range map[cay.Scope]bool{cay.ScopeJobs: true, cay.ScopeFiles: false} {
		k, _, err := a.CreateKey(t.Context(), admin.ProjectID, "k", []cay.Scope{scope}, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		u := signable(cay.Identity{KeyID: k.ID})
		u.Of = cay.NewID(cay.PrefixJob)
		signature, err := a.SignURL(t.Context(), u)
		if err != nil {
			t.Fatal(err)
		}
		id, err := a.VerifyURL(t.Context(), u, signature)
		if (err == nil) != good || good && (!id.May(cay.ScopeJobs) || id.May(cay.ScopeFiles)) {
			t.Errorf("a key with the scope %s: %v, %v", scope, id.Scopes, err)
		}
		u.Of = cay.ID(cay.PrefixSandbox + u.Of.Body())
		_, err = a.VerifyURL(t.Context(), u, signature)
		refused(t, err)
	}
}

func TestASignedURLDiesWithItsTimeAndItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := open(t)
		admin := identify(t, a, bootstrap(t, a, ""))
		sign := func(scope cay.Scope, expires time.Time) (cay.SignedURL, string, cay.ID) {
			k, _, err := a.CreateKey(t.Context(), admin.ProjectID, "k", []cay.Scope{scope}, expires)
			if err != nil {
				t.Fatal(err)
			}
			u := signable(cay.Identity{KeyID: k.ID})
			signature, err := a.SignURL(t.Context(), u)
			if err != nil {
				t.Fatal(err)
			}
			return u, signature, k.ID
		}
		u, signature, key := sign(cay.ScopeFiles, time.Time{})
		if _, err := a.VerifyURL(t.Context(), u, signature); err != nil {
			t.Fatal(err)
		}
		if err := a.RevokeKey(t.Context(), admin.ProjectID, key); err != nil {
			t.Fatal(err)
		}
		_, err := a.VerifyURL(t.Context(), u, signature)
		refused(t, err)

		u, signature, _ = sign(cay.ScopeExec, time.Time{})
		_, err = a.VerifyURL(t.Context(), u, signature)
		refused(t, err)

		u, signature, _ = sign(cay.ScopeFiles, time.Time{})
		brief, briefSignature, _ := sign(cay.ScopeFiles, time.Now().Add(time.Second))
		time.Sleep(time.Second)
		_, err = a.VerifyURL(t.Context(), brief, briefSignature)
		refused(t, err)
		if _, err := a.VerifyURL(t.Context(), u, signature); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		_, err = a.VerifyURL(t.Context(), u, signature)
		refused(t, err)
	})
}
