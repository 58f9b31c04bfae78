import { mount } from 'svelte';
import { millrace } from '@millrace/client';
import { server, type App as Channels } from '../channels.js';
import App from './App.svelte';

mount(App, { target: document.getElementById('app')!, props: { client: millrace<Channels>(server()) } });
