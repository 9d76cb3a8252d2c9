package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Setting is one value in force and where it came from.
type Setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Source string `json:"source"` // "default", a file's path, "$NAME", "flag"
	Help   string `json:"help"`
}

// Loaded is a configuration with the origin of every value.
type Loaded struct {
	Config
	sources map[string]string
}

// Path is the file that is read: $CAY_CONFIG, else /etc/cay/cay.yaml for root and ~/.config/cay/cay.yaml for others.
func Path() (path string, explicit bool) {
	if p := os.Getenv("CAY_CONFIG"); p != "" {
		return p, true
	}
	if os.Geteuid() == 0 {
		return "/etc/cay/cay.yaml", false
	}
	if d := os.Getenv("XDG_CONFIG_HOME"); d != "" {
		return filepath.Join(d, "cay/cay.yaml"), false
	}
	return filepath.Join(os.Getenv("HOME"), ".config/cay/cay.yaml"), false
}

// Load reads file, environment and flags over the defaults. flags maps keys to values that were given on the command line. It
// reports every fault that it finds, not just the first. A file that is not there is a fault only when it was asked for.
func Load(file string, required bool, lookupEnv func(string) (string, bool), flags map[string]string) (Loaded, error) {
	l := Loaded{Config: Default(), sources: map[string]string{}}
	var faults []error

	raw, err := os.ReadFile(file)
	switch {
	case err == nil:
		var doc map[string]any
		if err := yaml.Unmarshal(raw, &doc); err != nil {
			return l, fmt.Errorf("read %s: %w", file, err)
		}
		for key, value := range doc {
			if err := l.set(key, fileValue(value), file); err != nil {
				faults = append(faults, fmt.Errorf("%s: %w", file, err))
			}
		}
	case required || !errors.Is(err, fs.ErrNotExist):
		return l, fmt.Errorf("read the configuration: %w", err)
	}

	for _, f := range fields() {
		if v, ok := lookupEnv(f.Tag.Get("env")); ok && v != "" {
			if err := l.set(f.Tag.Get("key"), v, "$"+f.Tag.Get("env")); err != nil {
				faults = append(faults, fmt.Errorf("$%s: %w", f.Tag.Get("env"), err))
			}
		}
	}
	for key, v := range flags {
		if err := l.set(key, v, "flag"); err != nil {
			faults = append(faults, fmt.Errorf("flag: %w", err))
		}
	}
	if len(faults) == 0 {
		faults = append(faults, l.Validate())
	}
	return l, errors.Join(faults...)
}

func fields() []reflect.StructField { return reflect.VisibleFields(reflect.TypeFor[Config]()) }

func fileValue(v any) string {
	if list, ok := v.([]any); ok {
		parts := make([]string, len(list))
		for i, e := range list {
			parts[i] = fmt.Sprint(e)
		}
		return strings.Join(parts, ",")
	}
	return fmt.Sprint(v)
}

func (l *Loaded) set(key, text, source string) error {
	for _, f := range fields() {
		if f.Tag.Get("key") != key {
			continue
		}
		v := reflect.ValueOf(&l.Config).Elem().FieldByIndex(f.Index)
		if err := parse(v, text); err != nil {
			if f.Tag.Get("secret") != "" {
				text = "(hidden)"
			}
			return fmt.Errorf("%s: %q is not %s", key, text, kindName(v.Kind()))
		}
		l.sources[key] = source
		return nil
	}
	return fmt.Errorf("%s: no such setting; `cay config` lists them", key)
}

func parse(v reflect.Value, text string) error {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		v.SetBool(b)
		return err
	case reflect.Int64:
		n, err := strconv.ParseInt(text, 10, 64)
		v.SetInt(n)
		return err
	case reflect.Float64:
		n, err := strconv.ParseFloat(text, 64)
		v.SetFloat(n)
		return err
	case reflect.Slice:
		var list []string
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				list = append(list, part)
			}
		}
		v.Set(reflect.ValueOf(list))
	default:
		panic("config: field of kind " + v.Kind().String())
	}
	return nil
}

func kindName(k reflect.Kind) string {
	switch k {
	case reflect.Bool:
		return "true or false"
	case reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	default:
		return "a text"
	}
}

// Settings lists every value in force, in the order of the struct. Secrets are hidden.
func (l Loaded) Settings() []Setting {
	var out []Setting
	for _, f := range fields() {
		v := reflect.ValueOf(l.Config).FieldByIndex(f.Index)
		text := fmt.Sprint(v.Interface())
		if list, ok := v.Interface().([]string); ok {
			text = strings.Join(list, ",")
		}
		if f.Tag.Get("secret") != "" && text != "" {
			text = "(set)"
		}
		source, ok := l.sources[f.Tag.Get("key")]
		if !ok {
			source = "default"
		}
		out = append(out, Setting{Key: f.Tag.Get("key"), Value: text, Source: source, Help: f.Tag.Get("help")})
	}
	return out
}
